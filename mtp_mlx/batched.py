"""Batched rounds: several texts decoded together, each accepting its own number of tokens."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from math import nan
from time import perf_counter

import mlx.core as mx
import numpy as np

from mtp_mlx import accept
from mtp_mlx.backbone import Backbone
from mtp_mlx.decode import kind
from mtp_mlx.drafters.together import Text, Together
from mtp_mlx.events import Done, Event, Prefilled, Round
from mtp_mlx.request import check_numbers
from mtp_mlx.slots import Slots

CHUNK = 32  # rows of each text in a pass of the prefill
SMALLEST = 128  # rows of the smallest KV capacity; the next ones have half as many more, twice as many, and so on
AHEAD = 64  # texts that are read ahead, so that those of one capacity come together

Told = Iterator[tuple[Hashable, Event]]


def capacity(prompt: int, max_tokens: int, width: int) -> int:
    """The KV capacity of a text: for its prompt in chunks, its budget and a pass behind it: 128, 192, 256, 384, ..."""
    rows = max(SMALLEST, prompt + max(CHUNK, max_tokens + width))
    power = 1 << (rows - 1).bit_length()
    return 3 * power // 4 if rows <= 3 * power // 4 and power > SMALLEST else power


def decode(
    backbone: Backbone,
    texts: Iterable[Text],
    *,
    drafters: Together,
    prefix: Sequence[int],
    size: Callable[[int], int],
    width: int,
    draft_length: int,
    stopping: Callable[[], bool] = lambda: False,
) -> Told:
    """Greedy decode of many texts, several at once: each leaves when it is done, and the next one takes its slot.

    Every pass has ``width`` rows for each slot and attends over one KV capacity, that of the texts in it. So a text's
    logits and drafts are the same bits whatever slot it is in, whatever is in the others, and however many of its rows
    were drafted. At another batch size or width, and in the loop over one text (``decode.speculative``), passes have
    other shapes, and near-ties may fall otherwise.

    Args:
        texts: at most ``AHEAD`` are read ahead; those of one capacity are decoded together, the oldest first.
        prefix: ids that every prompt begins with, and is longer than; they are prefilled once.
        size: how many texts to decode at once where each has so many rows of KV cache.
        width: rows of a text in each pass, more than ``draft_length``.
        stopping: asked before texts join; when it says yes, only those in hand are finished.

    Yields:
        (key, event) of each text: Prefilled, its Rounds (their margin is not computed: NaN), Done. A text without
        tokens is Done at once.
    """
    check_numbers(max_tokens=1, width=width, draft_length=draft_length)
    if backbone.row_by_row:
        raise ValueError("--row-by-row takes one text at a time: give --batch 1")
    waiting = _Waiting(texts, width)
    while True:
        yield from waiting.fill()
        if stopping() or not (rows := waiting.first()):
            return
        batch = _Batch(backbone, drafters, prefix, slots=size(rows), capacity=rows)
        yield from batch.run(waiting, width=width, draft_length=draft_length, stopping=stopping)


class _Waiting:
    """Texts that have been read and not begun."""

    def __init__(self, texts: Iterable[Text], width: int):
        self._source = iter(texts)
        self._width = width
        self._read: list[tuple[int, Text]] = []  # (capacity, text), the oldest first

    def fill(self) -> Told:
        """Read on."""
        while len(self._read) < AHEAD and (text := next(self._source, None)):
            if text.tokens:
                self._read.append((capacity(len(text.tokens), text.left, self._width), text))
            else:
                yield text.key, Done("stopped")

    def first(self) -> int:
        """The capacity of the text that has waited longest; 0 where none waits."""
        return self._read[0][0] if self._read else 0

    def take(self, rows: int, most: int) -> list[Text]:
        """The oldest texts of a capacity."""
        taken = [i for i, (size, _) in enumerate(self._read) if size == rows][:most]
        return [self._read.pop(i)[1] for i in reversed(taken)][::-1]


class _Batch:
    """The slots of one capacity: texts are prefilled together beside them, and join as slots fall free."""

    def __init__(self, backbone: Backbone, drafters: Together, prefix: Sequence[int], *, slots: int, capacity: int):
        self.backbone = backbone
        self.drafters = drafters
        layers = len(backbone.model.layers)
        self.kv, self.staged = (Slots(layers, size=slots, capacity=capacity) for _ in range(2))
        shared = backbone.make_kv(len(prefix))
        self.state = backbone.prefill(prefix, shared)[0]  # (dim,) of the prefix's last token
        self.prefix = len(prefix)
        self.staged.share(shared)
        self.texts: list[Text | None] = [None] * slots
        self.ready: list[tuple[int, Text]] = []  # prefilled: the place in ``staged``, and the text

    def run(self, waiting: _Waiting, *, width: int, draft_length: int, stopping: Callable[[], bool]) -> Told:
        """Rounds until no text of this capacity is left."""
        while True:
            yield from waiting.fill()
            for slot in (slot for slot, text in enumerate(self.texts) if text is None):
                if not self.ready and not stopping():
                    yield from self._prefill(waiting.take(self.kv.capacity, self.kv.size))
                if self.ready:
                    source, text = self.ready.pop(0)
                    self.kv.copy(slot, self.staged, source)
                    self.drafters.start(slot, text)
                    self.texts[slot] = text
            if not any(self.texts):
                return
            yield from self._round(width, draft_length)

    def _prefill(self, texts: Sequence[Text]) -> Told:
        """Put prompts but for their last tokens into ``staged``, in passes of CHUNK rows for each slot."""
        started = perf_counter()
        self.staged.lengths = [self.prefix] * self.staged.size
        ids = [text.tokens[self.prefix : -1] for text in texts]
        for text in texts:
            text.hidden = self.state
        for start in range(0, max(map(len, ids), default=0), CHUNK):
            parts = [row[start : start + CHUNK] for row in ids]
            hidden = states(self.backbone, parts, self.staged, width=CHUNK)
            for slot, (text, part) in enumerate(zip(texts, parts, strict=True)):
                if part:
                    text.hidden = hidden[slot, len(part) - 1]
            self.staged.commit([len(part) for part in parts])
            mx.eval([text.hidden for text in texts], [self.staged.view(i) for i in range(len(self.staged.layers))])
        self.ready += enumerate(texts)
        for text in texts:
            yield text.key, Prefilled(len(text.tokens), (perf_counter() - started) / len(texts))

    def _round(self, width: int, draft_length: int) -> Told:
        """Draft for all, verify all in one pass, and let each text accept what is its own."""
        started = perf_counter()
        texts = [(slot, text) for slot, text in enumerate(self.texts) if text is not None]
        longest = min(draft_length, max(text.left for _, text in texts) - 1)
        drafts = self.drafters.draft(self.texts, self.kv, longest)
        drafted = perf_counter()

        rows = [
            () if text is None else (text.tokens[-1], *draft.ids)
            for text, draft in zip(self.texts, drafts, strict=True)
        ]
        best, hidden = forward(self.backbone, rows, self.kv, width=width)
        mx.eval(best, hidden)
        choices = np.array(best).tolist()
        share = len(texts)
        seconds = ((drafted - started) / share, (perf_counter() - drafted) / share)  # a text's part of the round

        committed = [0] * self.kv.size
        for slot, text in texts:
            draft = drafts[slot]
            accepted, token = accept.greedy(draft.ids, choices[slot], eos=self.backbone.eos)
            outcome = Round(
                drafted=draft.ids,
                probabilities=draft.probabilities,
                accepted=accepted,
                token=token,
                kind=kind(len(draft.ids), accepted, token),
                margin=nan,
                draft_seconds=seconds[0],
                verify_seconds=seconds[1],
            )
            text.tokens.extend(outcome.committed)
            text.left -= len(outcome.committed)
            text.hidden = hidden[slot, accepted]
            committed[slot] = accepted + 1
            yield text.key, outcome
            ended = outcome.committed[-1] in self.backbone.eos
            if ended or text.left == 0:
                self.texts[slot] = None
                yield text.key, Done("end" if ended else "budget")
        self.kv.commit(committed)


def forward(backbone: Backbone, rows: Sequence[Sequence[int]], kv: Slots, *, width: int) -> tuple[mx.array, mx.array]:
    """A pass over the next ids of each text: the backbone's choices (slots, width), its states (slots, width, dim)."""
    hidden = states(backbone, rows, kv, width=width)
    return mx.argmax(backbone.logits(hidden), axis=-1), hidden


def states(backbone: Backbone, rows: Sequence[Sequence[int]], kv: Slots, *, width: int) -> mx.array:
    """The backbone's post-norm states over the next ids of each text, (slots, width, dim); commits nothing."""
    return backbone.states(padded(rows, kv.size, width), kv.layers)


def padded(rows: Sequence[Sequence[int]], size: int, width: int) -> mx.array:
    """(size, width) ids: token 0 where there is none, which no other row sees and the next pass overwrites."""
    ids = np.zeros((size, width), np.int32)
    for slot, row in enumerate(rows):
        ids[slot, : len(row)] = row
    return mx.array(ids)
