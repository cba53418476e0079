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
from mtp_mlx.kv import doubled
from mtp_mlx.request import check_numbers
from mtp_mlx.slots import Slots

CHUNK = 16  # rows of each text in a pass of the prefill: half of a chunk is empty at the end of each prompt
SMALLEST = doubled(1)  # rows of the smallest KV capacity
AHEAD = 64  # texts that are read ahead, so that those of one capacity come together

Told = Iterator[tuple[Hashable, Event]]


def capacity(prompt: int, max_tokens: int, width: int) -> int:
    """The KV capacity of a text: for its prompt in chunks, its budget and a pass behind it: 128, 192, 256, 384, ..."""
    return doubled(prompt + max(CHUNK, max_tokens + width))


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
        (key, event) of each text: Prefilled, its Rounds, the first token's first (their margin is not computed: NaN),
        Done. A text without tokens is Done at once.
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
        backbone.prefill(prefix, shared)
        self.prefix = len(prefix)
        self.staged.share(shared)
        self.texts: list[Text | None] = [None] * slots
        self.staging: list[Text | None] = [None] * slots  # whose prompts are in ``staged``, or will be
        self.seconds = [0.0] * slots  # of prefill, for each of these
        self.ready: list[int] = []  # places in ``staged`` where a prompt is whole

    def run(self, waiting: _Waiting, *, width: int, draft_length: int, stopping: Callable[[], bool]) -> Told:
        """Rounds until no text of this capacity is left."""
        while True:
            yield from waiting.fill()
            for slot in (slot for slot, text in enumerate(self.texts) if text is None):
                if not stopping():
                    self._stage(waiting)
                while not self.ready and any(self.staging) and not stopping():
                    yield from self._prefill()
                if self.ready:
                    self._join(slot, self.ready.pop(0))
            if not any(self.texts):
                return
            yield from self._round(width, draft_length)

    def _stage(self, waiting: _Waiting) -> None:
        """Let texts wait in the free places of ``staged``, with the prefix that they begin with."""
        free = [place for place, text in enumerate(self.staging) if text is None]
        lengths = [*self.staged.lengths]
        for place, text in zip(free, waiting.take(self.kv.capacity, len(free)), strict=False):
            self.staging[place], self.seconds[place] = text, 0.0
            lengths[place] = self.prefix
        self.staged.lengths = lengths

    def _join(self, slot: int, place: int) -> None:
        """Take a text whose prompt is whole into the rounds."""
        text = self.staging[place]
        assert text is not None
        self.kv.copy(slot, self.staged, place)
        self.drafters.start(slot, text)
        self.texts[slot], self.staging[place] = text, None

    def _prefill(self) -> Told:
        """One pass: the next CHUNK ids of every prompt in ``staged``; one that is whole then has its first token."""
        started = perf_counter()
        texts = [(place, text) for place, text in enumerate(self.staging) if text is not None]
        parts: list[list[int]] = [[] for _ in self.staging]
        for place, text in texts:
            parts[place] = text.tokens[self.staged.lengths[place] :][:CHUNK]
        hidden = states(self.backbone, parts, self.staged, width=CHUNK)  # (slots, CHUNK, dim)
        self.staged.commit([len(part) for part in parts])
        whole = [(place, text) for place, text in texts if self.staged.lengths[place] == len(text.tokens)]
        first = mx.argmax(last_logits(self.backbone, hidden, parts), axis=-1) if whole else mx.array([])  # (slots,)
        mx.eval(hidden, first, [self.staged.view(i) for i in range(len(self.staged.layers))])
        share = (perf_counter() - started) / len(texts)  # a text's part of the pass
        for place, _ in texts:
            self.seconds[place] += share
        choices = np.array(first).tolist()
        for place, text in whole:
            text.hidden = hidden[place, len(parts[place]) - 1]
            yield text.key, Prefilled(len(text.tokens), self.seconds[place])
            yield from self._told(text, Round.first(choices[place], margin=nan))
            if text.left:
                self.ready.append(place)
            else:
                self.staging[place] = None

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
            text.hidden = hidden[slot, accepted]
            committed[slot] = accepted + 1
            yield from self._told(text, outcome)
            if not text.left:
                self.texts[slot] = None
        self.kv.commit(committed)

    def _told(self, text: Text, outcome: Round) -> Told:
        """Add what a round commits to its text, of which nothing is left to write once it has ended."""
        text.tokens.extend(outcome.committed)
        ended = outcome.committed[-1] in self.backbone.eos
        text.left = 0 if ended else text.left - len(outcome.committed)
        yield text.key, outcome
        if not text.left:
            yield text.key, Done("end" if ended else "budget")


def forward(backbone: Backbone, rows: Sequence[Sequence[int]], kv: Slots, *, width: int) -> tuple[mx.array, mx.array]:
    """A pass over the next ids of each text: the backbone's choices (slots, width), its states (slots, width, dim)."""
    hidden = states(backbone, rows, kv, width=width)
    return mx.argmax(backbone.logits(hidden), axis=-1), hidden


def states(backbone: Backbone, rows: Sequence[Sequence[int]], kv: Slots, *, width: int) -> mx.array:
    """The backbone's post-norm states over the next ids of each text, (slots, width, dim); commits nothing."""
    return backbone.states(padded(rows, kv.size, width), kv.layers)


def last_logits(backbone: Backbone, hidden: mx.array, rows: Sequence[Sequence[int]]) -> mx.array:
    """Of each text's last id in a pass with states (slots, width, dim): what comes after it, (slots, vocab)."""
    last = mx.array([max(len(row) - 1, 0) for row in rows])  # (slots,)
    return backbone.logits(mx.take_along_axis(hidden, last[:, None, None], axis=1))[:, 0]


def padded(rows: Sequence[Sequence[int]], size: int, width: int) -> mx.array:
    """(size, width) ids: token 0 where there is none, which no other row sees and the next pass overwrites."""
    ids = np.zeros((size, width), np.int32)
    for slot, row in enumerate(rows):
        ids[slot, : len(row)] = row
    return mx.array(ids)
