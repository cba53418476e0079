"""What happened: the events of a decode, in token ids; to and from JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Kind = Literal["first", "plain", "correction", "bonus", "end"]
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
    - ``end``: none, because the last accepted token is end-of-text (``token`` is None);
    - ``first``: the text's first token, which the prompt's own pass gives: no draft, no verify pass, no seconds.

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

    @classmethod
    def first(cls, token: int, *, margin: float) -> Round:
        """What stands for the pass over the prompt, whose last row says how the text begins."""
        return cls((), (), 0, token, "first", margin, 0.0, 0.0)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Round:
        lists = {name: tuple(fields[name]) for name in ("drafted", "probabilities")}
        return cls(**{**fields, **lists})


@dataclass(frozen=True)
class Guess:
    """What stands behind one drafted token.

    ``top``: the drafter's likeliest (id, probability), best first. ``attention``: for each head layer the positions
    that it looked at and their shares of its attention, (position, share). Both are empty where there are none.
    """

    top: tuple[tuple[int, float], ...] = ()
    attention: tuple[tuple[tuple[int, float], ...], ...] = ()


@dataclass(frozen=True)
class Row:
    """What the backbone says in one row of a verify pass.

    ``top``: its likeliest (id, probability), best first. ``margin``: the difference of its two largest logits.
    ``rank`` (1: the likeliest) and ``probability``: of the token that was drafted there; None where none was.
    """

    top: tuple[tuple[int, float], ...]
    margin: float
    rank: int | None
    probability: float | None


@dataclass(frozen=True)
class Inspection:
    """What stands behind the round that comes next: a guess for each drafted token, and the rows of the pass.

    ``rows[i]`` judges the i-th drafted token; the one after an accepted draft is the backbone's next token.
    """

    guesses: tuple[Guess, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Prefilled:
    """The prompt is in the KV cache; the text's first token comes next, and was computed in these seconds."""

    prompt_tokens: int
    seconds: float


@dataclass(frozen=True)
class Done:
    """No more rounds: end-of-text, the token budget is used up, or somebody stopped it."""

    reason: Reason


Event = Prefilled | Draft | Inspection | Round | Done
