"""A decode as people read it: events plus text, as one JSON object that grows round by round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mtp_mlx.events import Done, Draft, Event, Prefilled, Reason, Round
from mtp_mlx.metrics import Stats

VERSION = 1
# A head whose drafts are never accepted over this many is broken; a shorter draft may just be unlucky.
FAULT_AFTER = 16

Status = Literal["queued", "loading", "running", "done", "stopped", "failed"]


@dataclass
class Trace:
    """What a run has shown so far.

    Args:
        decode: ids → text, for one token or many; only complete UTF-8 is shown while the run goes on.
        eos: ids that end the text and are not shown in it.
        draft_length: the most tokens of a draft; ``auto``: as many as pay.
        memory: what the run takes: ``profile``, its ``budget`` in bytes (None: no limit), bytes by name (``entries``).
    """

    task: str
    drafter: str
    width: int
    draft_length: int | str
    max_tokens: int
    decode: Callable[[Sequence[int]], str]
    eos: frozenset[int]
    memory: dict[str, Any] = field(default_factory=dict)
    status: Status = "running"
    prompt_tokens: int = 0
    text: str = ""
    finish: Reason | None = None
    pending: Draft | None = None
    token_ids: list[int] = field(default_factory=list)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
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
            case Round():
                self.pending = None
                self.stats.add(event)
                self.token_ids.extend(event.committed)
                self.rounds.append(self._round(event))
                return self._grow()
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

    def _round(self, event: Round) -> dict[str, Any]:
        probabilities = event.probabilities or [None] * len(event.drafted)
        return {
            "drafted": [self._token(i, p) for i, p in zip(event.drafted, probabilities, strict=True)],
            "accepted": event.accepted,
            "token": None if event.token is None else {"id": event.token, "text": self.decode([event.token])},
            "kind": event.kind,
            "margin": event.margin,
            "draft_seconds": event.draft_seconds,
            "verify_seconds": event.verify_seconds,
        }

    def _token(self, id: int, probability: float | None) -> dict[str, Any]:
        return {"id": id, "text": self.decode([id]), "probability": probability}

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
        probabilities = pending.probabilities or [None] * len(pending.ids) if pending else []
        return {
            "version": VERSION,
            "status": self.status,
            "task": self.task,
            "drafter": self.drafter,
            "width": self.width,
            "draft_length": self.draft_length,
            "max_tokens": self.max_tokens,
            "memory": self.memory,
            "prompt_tokens": self.prompt_tokens,
            "token_ids": list(self.token_ids),
            "text": self.text,
            "pending": [self._token(i, p) for i, p in zip(pending.ids, probabilities, strict=True)] if pending else [],
            "rounds": list(self.rounds),
            "finish": self.finish,
            "warnings": self.warnings,
            "stats": self.stats.to_json(),
        }
