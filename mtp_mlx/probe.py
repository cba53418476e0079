"""Is decoding exact on this device? The same tokens through different rows of a pass must give equal bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mtp_mlx.backbone import Backbone
from mtp_mlx.batched import CHUNK, SMALLEST, last_logits, states
from mtp_mlx.slots import Slots

# How many rows each verify pass commits, one after the other, capped at the width: all row positions come up.
PATTERN = (2, 8, 1, 5)


@dataclass(frozen=True)
class ProbeResult:
    """How many logit rows were compared, and how many differed in any bit."""

    width: int
    compared: int
    different: int
    texts: int = 1

    @property
    def exact(self) -> bool:
        return self.different == 0

    def __str__(self) -> str:
        shape = f"at width {self.width}" + (f", {self.texts} texts at once" if self.texts > 1 else "")
        if self.exact:
            return f"exact: {self.compared} logit rows {shape}, every bit equal"
        row, cure = ("row", "--row-by-row") if self.texts == 1 else ("row or neighbours", "--batch 1 --row-by-row")
        return (
            f"NOT exact on this device: {self.different} of {self.compared} logit rows {shape} depend on "
            f"their {row}, so near-ties may fall otherwise than in plain decode; use {cure} (slow, exact)"
        )


def probe(backbone: Backbone, *, width: int, prompt: Sequence[int] | None = None) -> ProbeResult:
    """Compare the logits of one text decoded one row a pass with the same text in drafts of many lengths.

    The rows behind the committed ones hold wrong tokens, as after a rejection.

    Args:
        prompt: ids to prefill; the text is their greedy continuation. By default a few ids of the vocabulary.
    """
    prompt = list(prompt or range(40, 56))
    counts = [min(n, width) for n in PATTERN]
    rows = len(prompt) + sum(counts) + width

    kv = backbone.make_kv(rows)
    backbone.prefill(prompt[:-1], kv)
    text, plain = [prompt[-1]], []
    for _ in range(sum(counts)):
        logits = backbone.forward(text[-1:], kv, width=width).logits
        kv.commit(1)
        plain.append(np.array(logits[0].astype(mx.float32)))
        text.append(int(plain[-1].argmax()))

    kv = backbone.make_kv(rows)
    backbone.prefill(prompt[:-1], kv)
    start = different = 0
    for count in counts:
        wrong = [prompt[i % len(prompt)] for i in range(width - count)]
        logits = backbone.forward([*text[start : start + count], *wrong], kv, width=width).logits
        kv.commit(count)
        for row in range(count):
            different += not np.array_equal(np.array(logits[row].astype(mx.float32)), plain[start + row])
        start += count
    return ProbeResult(width, start, different)


def probe_batch(backbone: Backbone, *, texts: int, width: int) -> ProbeResult:
    """Compare the logits of several texts decoded one row a pass with the same texts drafted, in other slots.

    Some of those drafts are wrong from a row on; and the last text goes through another slot once more, alone.
    """
    prompts = [[40 + (31 * i + j) % 900 for j in range(12 + i % 5)] for i in range(texts)]
    empty: list[int] = []

    def begun(rows: Sequence[Sequence[int]]) -> tuple[Slots, np.ndarray]:
        """The KV cache with prompts in it, and the logits after each, (texts, vocab)."""
        kv = Slots(len(backbone.model.layers), size=texts, capacity=SMALLEST)
        hidden = states(backbone, rows, kv, width=CHUNK)
        kv.commit([len(row) for row in rows])
        return kv, np.array(last_logits(backbone, hidden, rows).astype(mx.float32))

    def logits(rows: Sequence[Sequence[int]], kv: Slots) -> np.ndarray:
        return np.array(backbone.logits(states(backbone, rows, kv, width=width)).astype(mx.float32))

    kv, first = begun(prompts)
    plain, said = [first], [[int(row.argmax())] for row in first]
    for _ in range(width):
        plain.append(logits([text[-1:] for text in said], kv)[:, 0])  # (texts, vocab)
        kv.commit([1] * texts)
        for text, row in zip(said, plain[-1], strict=True):
            text.append(int(row.argmax()))

    compared = different = 0
    backwards = [*range(texts)][::-1]
    for order in (backwards, [texts - 1, *[None] * (texts - 1)]):
        rows = [empty if i is None else said[i][:width] for i in order]
        right = [len(row) if slot % 2 == 0 else min(len(row), 1 + slot % width) for slot, row in enumerate(rows)]
        drafts = [[*row[:n], *[7] * (len(row) - n)] for row, n in zip(rows, right, strict=True)]
        kv, first = begun([empty if i is None else prompts[i] for i in order])
        found = np.concatenate([first[:, None], logits(drafts, kv)], axis=1)  # (texts, 1 + width, vocab)
        for slot, i in enumerate(order):
            for row in range(1 + right[slot] if i is not None else 0):
                compared += 1
                different += not np.array_equal(found[slot, row], plain[row][i])
    return ProbeResult(width, compared, different, texts)
