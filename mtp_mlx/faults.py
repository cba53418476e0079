"""Famous bugs of speculative decoding, each switched on in the real decode loop, to show what they do to a text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from mtp_mlx.backbone import Backbone, Pass
from mtp_mlx.decode import speculative
from mtp_mlx.events import Done, Event, Round
from mtp_mlx.kv import KV
from mtp_mlx.trace import Trace

PENALTY = 1.3  # what a token's logit is divided by once it was written
Decode = Callable[..., Iterator[Event]]  # of what ``decode.speculative`` takes


@dataclass(frozen=True)
class Fault:
    """A way to get a text wrong, and the same without the bug.

    Attributes:
        shown: what makes a text of the tokens, with the bug.
        max_tokens: the most tokens to write where nobody asks for another number; None: the task's own budget.
        keeps: rows that were thrown away stay in the KV cache, with the bug.
    """

    wrong: Decode = speculative
    right: Decode = speculative
    shown: type[Trace] = Trace
    max_tokens: int | None = None
    keeps: bool = False


def drafted_end(backbone: Backbone, prompt: Sequence[int], **options: Any) -> Iterator[Event]:
    """The bug: an end-of-text that was only drafted ends the text, verified or not."""
    for event in speculative(backbone, prompt, **options):
        yield event
        if isinstance(event, Round) and backbone.eos.intersection(event.drafted):
            yield Done("end")
            return


def counted_drafts(backbone: Backbone, prompt: Sequence[int], *, max_tokens: int, **options: Any) -> Iterator[Event]:
    """The bug: the budget pays for every drafted token, kept or not."""
    left = max_tokens
    for event in speculative(backbone, prompt, max_tokens=max_tokens, **options):
        yield event
        if isinstance(event, Round):
            left -= max(len(event.drafted), len(event.committed))
            if left <= 0:
                yield Done("budget")
                return


class Same(Backbone):
    """A backbone that is another one, compiled passes included, but for what is added to it."""

    def __init__(self, backbone: Backbone):
        vars(self).update(vars(backbone) | {"row_by_row": False})


class Spacious(Same):
    """A backbone whose newest KV cache can be got at, and has room for rows that should not be in it."""

    def __init__(self, backbone: Backbone, *, rows: int):
        super().__init__(backbone)
        self._more = rows

    def make_kv(self, rows: int) -> KV:
        self.kv = super().make_kv(rows + self._more)
        return self.kv


def stale_rows(backbone: Backbone, prompt: Sequence[int], **options: Any) -> Iterator[Event]:
    """The bug: what was rejected is not rolled back, and its keys and values are read as if it had been written."""
    backbone = Spacious(backbone, rows=options["max_tokens"] * options["width"])
    for event in speculative(backbone, prompt, **options):
        yield event
        if isinstance(event, Round):
            backbone.kv.commit(len(event.drafted) - event.accepted)


class Penalised(Same):
    """A backbone that is loath to repeat itself (CTRL, arXiv:1909.05858): each row by the text that leads to it."""

    def __init__(self, backbone: Backbone):
        super().__init__(backbone)
        self._at: dict[int, int] = {}  # position → id; the next pass writes over what was rejected

    def forward(self, ids: list[int] | mx.array, kv: KV, *, width: int) -> Pass:
        result = super().forward(ids, kv, width=width)
        self._at |= {kv.length + row: id for row, id in enumerate(np.array(ids).tolist())}
        rows = []
        for row, logits in enumerate(result.logits):  # (vocab,)
            seen = mx.array(sorted(self.written(kv.length + row)))
            logits[seen] = mx.where(logits[seen] > 0, logits[seen] / PENALTY, logits[seen] * PENALTY)
            rows.append(logits)
        return Pass(mx.stack(rows), result.hidden)

    def written(self, position: int) -> set[int]:
        """The ids of the text as far as a position."""
        return {id for at, id in self._at.items() if at <= position}


class PenalisedByDrafts(Penalised):
    """The bug: whatever was ever drafted counts as written, before it is judged and after it is rejected."""

    def __init__(self, backbone: Backbone):
        super().__init__(backbone)
        self._ever: set[int] = set()

    def forward(self, ids: list[int] | mx.array, kv: KV, *, width: int) -> Pass:
        self._ever.update(np.array(ids).tolist())
        return super().forward(ids, kv, width=width)

    def written(self, position: int) -> set[int]:
        return self._ever


def penalised(backbone: Backbone, prompt: Sequence[int], **options: Any) -> Iterator[Event]:
    """Greedy decode with a repetition penalty."""
    return speculative(Penalised(backbone), prompt, **options)


def penalised_by_drafts(backbone: Backbone, prompt: Sequence[int], **options: Any) -> Iterator[Event]:
    """The same with the bug."""
    return speculative(PenalisedByDrafts(backbone), prompt, **options)


class Hasty(Trace):
    """The bug: the tokens of each round are decoded by themselves, whether or not their bytes make whole characters."""

    def _grow(self, *, final: bool = False) -> str:
        fresh = [i for i in self.token_ids[self._shown :] if i not in self.eos]
        added = self.decode(fresh) if fresh else ""
        self._shown = len(self.token_ids)
        self.text += added
        return added


FAULTS = {
    "end": Fault(wrong=drafted_end),
    "budget": Fault(wrong=counted_drafts, max_tokens=20),
    "penalty": Fault(wrong=penalised_by_drafts, right=penalised),
    "stale": Fault(wrong=stale_rows, keeps=True),
    "emoji": Fault(shown=Hasty),
}
