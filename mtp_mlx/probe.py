"""Is decoding exact on this device? The same tokens through different rows of a pass must give equal bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mtp_mlx.backbone import Backbone

# How many rows each verify pass commits, one after the other, capped at the width: all row positions come up.
PATTERN = (2, 8, 1, 5)


@dataclass(frozen=True)
class ProbeResult:
    """How many logit rows were compared, and how many differed in any bit."""

    width: int
    compared: int
    different: int

    @property
    def exact(self) -> bool:
        return self.different == 0

    def __str__(self) -> str:
        if self.exact:
            return f"exact: {self.compared} logit rows at width {self.width}, every bit equal"
        return (
            f"NOT exact on this device: {self.different} of {self.compared} logit rows at width {self.width} depend on "
            "their row, so near-ties may fall otherwise than in plain decode; use --row-by-row (slow, exact)"
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
