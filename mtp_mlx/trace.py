"""A decode as people read it: events plus text, as one JSON object that grows round by round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from mtp_mlx.events import Done, Draft, Event, Guess, Inspection, Prefilled, Reason, Round, Row
from mtp_mlx.metrics import Stats

VERSION = 2
# A head whose drafts are never accepted over this many is broken; a shorter draft may just be unlucky.
FAULT_AFTER = 16

Status = Literal["queued", "loading", "running", "done", "stopped", "failed"]


@dataclass
class Trace:
    """What a run has shown so far.

    Args:
        input: the text that was given.
        decode: ids → text, for one token or many; only complete UTF-8 is shown while the run goes on.
        eos: ids that end the text and are not shown in it.
        draft_length: the most tokens of a draft.
        prompt: the ids that the text became, where the run is inspected.
        pace: what the draft length follows where it is ``auto``: seconds of ``passes`` by width and of a ``step``, and
            the ``chances`` that were measured beforehand; None where it is fixed.
        memory: what the run takes: ``profile``, its ``budget`` in bytes (None: no limit), bytes by name (``entries``).
    """

    task: str
    drafter: str
    width: int
    draft_length: int
    max_tokens: int
    decode: Callable[[Sequence[int]], str]
    eos: frozenset[int]
    input: str = ""
    prompt: Sequence[int] = ()
    memory: dict[str, Any] = field(default_factory=dict)
    pace: dict[str, Any] | None = None
    status: Status = "running"
    prompt_tokens: int = 0
    text: str = ""
    finish: Reason | None = None
    pending: Draft | None = None
    token_ids: list[int] = field(default_factory=list)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
    _seen: Inspection | None = None  # of the round that comes next
    _warnings: dict[str, str] = field(default_factory=dict)
    _shown: int = 0  # how many token ids are whole in ``text``
    _ahead: int = 0  # how many characters of the ids after them are in it, too

    def add(self, event: Event) -> str:
        """Take in one event; return what it adds to the text."""
        match event:
            case Prefilled():
                self.prompt_tokens = event.prompt_tokens
                self.stats.prefill_seconds = event.seconds
            case Draft():
                self.pending = event
            case Inspection():
                self._seen = event
            case Round():
                self.stats.add(event)
                self.token_ids.extend(event.committed)
                added = self._grow()
                self.rounds.append(self._round(event, self._seen, added))
                self.pending = self._seen = None
                return added
            case Done():
                self.finish = event.reason
                self.status = "stopped" if event.reason == "stopped" else "done"
                return self._grow(final=True)
        return ""

    def _grow(self, *, final: bool = False) -> str:
        """Decode the tokens that are not shown yet; hold back the character that they end inside of, if any."""
        fresh = [i for i in self.token_ids[self._shown :] if i not in self.eos]
        decoded = self.decode(fresh) if fresh else ""
        whole = decoded if final else decoded.rstrip("\ufffd")
        added = whole[self._ahead :]
        self._ahead = len(whole)
        if whole == decoded:
            self._shown, self._ahead = len(self.token_ids), 0
        self.text += added
        return added

    def _round(self, event: Round, seen: Inspection | None, added: str) -> dict[str, Any]:
        guesses = seen.guesses if seen else [Guess()] * len(event.drafted)
        drafted = self._tokens(event.drafted, event.probabilities)
        return {
            "drafted": [token | self._guess(guess) for token, guess in zip(drafted, guesses, strict=True)],
            "accepted": event.accepted,
            "token": None if event.token is None else {"id": event.token, "text": self.decode([event.token])},
            "kind": event.kind,
            "added": added,
            "margin": event.margin,
            "rows": [self._row(row) for row in seen.rows] if seen else [],
            "draft_seconds": event.draft_seconds,
            "verify_seconds": event.verify_seconds,
        }

    @cached_property
    def _prompt(self) -> list[dict[str, Any]]:
        return self._tokens(self.prompt, ())

    def _tokens(self, ids: Sequence[int], probabilities: Sequence[float]) -> list[dict[str, Any]]:
        pairs = zip(ids, probabilities or [None] * len(ids), strict=True)
        return [{"id": id, "text": self.decode([id]), "probability": probability} for id, probability in pairs]

    def _guess(self, guess: Guess) -> dict[str, Any]:
        attention = [[[position, round(share, 3)] for position, share in layer] for layer in guess.attention]
        return {"top": self._top(guess.top), "attention": attention}

    def _row(self, row: Row) -> dict[str, Any]:
        probability = None if row.probability is None else _short(row.probability)
        return {"top": self._top(row.top), "margin": _short(row.margin), "rank": row.rank, "probability": probability}

    def _top(self, top: Sequence[tuple[int, float]]) -> list[dict[str, Any]]:
        return self._tokens([id for id, _ in top], [_short(probability) for _, probability in top])

    def warn(self, about: str, line: str) -> None:
        """Add a warning; of one matter only the newest is kept."""
        self._warnings[about] = line

    @property
    def warnings(self) -> list[str]:
        """What a reader should know about this run, one line each."""
        lines = list(self._warnings.values())
        if self.drafter == "mtp" and self.stats.drafted >= FAULT_AFTER and self.stats.accepted == 0:
            lines.append(
                "Not one draft token was accepted. The text is right, the MTP head is not: "
                "check that it was trained for this backbone (mtp-mlx doctor)."
            )
        return lines

    def to_json(self) -> dict[str, Any]:
        pending = self.pending
        return {
            "version": VERSION,
            "status": self.status,
            "task": self.task,
            "input": self.input,
            "drafter": self.drafter,
            "width": self.width,
            "draft_length": self.draft_length,
            "max_tokens": self.max_tokens,
            "memory": self.memory,
            "pace": self.pace,
            "prompt_tokens": self.prompt_tokens,
            "prompt": self._prompt,
            "token_ids": list(self.token_ids),
            "text": self.text,
            "pending": self._tokens(pending.ids, pending.probabilities) if pending else [],
            "rounds": list(self.rounds),
            "finish": self.finish,
            "warnings": self.warnings,
            "stats": self.stats.to_json(),
        }


def _short(number: float) -> float:
    """Four digits are enough to look at."""
    return float(f"{number:.4g}")
