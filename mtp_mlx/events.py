"""What happened: the events of a decode, in token ids; to and from JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Kind = Literal["plain", "correction", "bonus", "end"]
Reason = Literal["end", "budget", "stopped"]


@dataclass(frozen=True)
class Draft:
    """What a drafter proposes for one round.

    ``probabilities`` are the drafter's own, one for each id; empty where it has none (prompt lookup).
    """

    ids: tuple[int, ...] = ()
    probabilities: tuple[float, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Round:
    """One draft and the verify pass that judged it.

    ``drafted[:accepted]`` are the backbone's own next tokens; ``token`` is what it wrote after them:

    - ``correction``: the backbone's token in place of the first rejected draft token;
    - ``bonus``: its token after a draft that was accepted whole;
    - ``plain``: its token where nothing was drafted;
    - ``end``: none, because the last accepted token is end-of-text (``token`` is None).

    ``margin`` is the difference of the backbone's two largest logits where ``token`` (or, at the end,
    the last accepted token) was chosen. Seconds are wall-clock.
    """

    drafted: tuple[int, ...]
    probabilities: tuple[float, ...]
    accepted: int
    token: int | None
    kind: Kind
    margin: float
    draft_seconds: float
    verify_seconds: float

    @property
    def committed(self) -> tuple[int, ...]:
        """The token ids that this round adds to the text."""
        kept = self.drafted[: self.accepted]
        return kept if self.token is None else (*kept, self.token)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Round:
        lists = {name: tuple(fields[name]) for name in ("drafted", "probabilities")}
        return cls(**{**fields, **lists})


@dataclass(frozen=True)
class Prefilled:
    """The prompt is in the KV cache; the first round comes next."""

    prompt_tokens: int
    seconds: float


@dataclass(frozen=True)
class Done:
    """No more rounds: end-of-text, the token budget is used up, or somebody stopped it."""

    reason: Reason


Event = Prefilled | Draft | Round | Done
