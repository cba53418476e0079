"""What a person asks for: one task on one text, checked before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mtp_mlx.tasks import TASKS

DRAFTERS = ("mtp", "auto", "standalone", "lookup", "plain")
FAULTS = ("end", "budget", "penalty", "stale", "emoji")
WIDTH = 8
MAX_WIDTH = 64  # rows; far beyond any draft that pays
DRAFT_LENGTH = 4  # where it is fixed, and nobody said to what


@dataclass(frozen=True)
class Request:
    """One run.

    Attributes:
        draft_length: tokens to draft each round, 0 to ``width - 1``; None: 4, or as many as fit; ``auto``: each round
            as many as pay, by measurement.
        width: rows of every verify pass; None: 8, but where ``auto`` measures that another one is better.
        max_tokens: the most tokens to commit; None: the task's own budget.
        inspect: the trace holds what stands behind each token, too; the text and the measured times stay the same.
        profile: the phone whose memory budget is kept; see ``profiles``.
        fault: a famous bug to run with, for people to look at; see ``faults``.
        fixed: the same without that bug.

    Raises:
        ValueError: no such task, drafter or fault, no string where one should be, or numbers that make no sense
            together.
    """

    task: str
    text: str
    drafter: str = "mtp"
    draft_length: int | Literal["auto"] | None = None
    width: int | None = None
    max_tokens: int | None = None
    profile: str = "none"
    inspect: bool = False
    fault: str | None = None
    fixed: bool = False

    def __post_init__(self) -> None:
        for name in ("task", "text", "drafter", "profile"):
            if not isinstance(value := getattr(self, name), str):
                raise ValueError(f"{name} is no text but {type(value).__name__}: give a string")
        if self.task not in TASKS:
            raise ValueError(f"no task is called {self.task!r}: choose {' or '.join(TASKS)}")
        if self.drafter not in DRAFTERS:
            raise ValueError(f"no drafter is called {self.drafter!r}: choose {', '.join(DRAFTERS)}")
        if self.fault is not None and self.fault not in FAULTS:
            raise ValueError(f"no fault is called {self.fault!r}: choose {', '.join(FAULTS)}")
        check_numbers(
            max_tokens=1 if self.max_tokens is None else self.max_tokens,
            width=self.rows,
            draft_length=self.draft_length if isinstance(self.draft_length, int) else self.drafts,
        )

    @property
    def rows(self) -> int:
        """The width, where no measurement changes it."""
        return WIDTH if self.width is None else self.width

    @property
    def drafts(self) -> int:
        """Tokens to draft each round, as a number; ``auto``: the most."""
        if self.drafter == "plain":
            return 0
        if self.draft_length == "auto":
            return self.rows - 1
        return min(DRAFT_LENGTH, self.rows - 1) if self.draft_length is None else self.draft_length


def check_numbers(*, max_tokens: int, width: int, draft_length: int) -> None:
    """Raise ValueError, in one line, for numbers that make no sense together."""
    for name, number in (("max tokens", max_tokens), ("width", width), ("draft length", draft_length)):
        if not isinstance(number, int) or isinstance(number, bool):
            raise ValueError(f"{name} is {number!r}: give a whole number")
    if max_tokens < 1:
        raise ValueError(f"max tokens is {max_tokens}: give at least 1")
    if not 1 <= width <= MAX_WIDTH:
        raise ValueError(f"width is {width}: give 1 to {MAX_WIDTH} rows")
    if not 0 <= draft_length < width:
        wider = f", or --width {draft_length + 1} on the command line" if width <= draft_length < MAX_WIDTH else ""
        raise ValueError(f"draft length {draft_length} does not fit width {width}: give 0 to {width - 1}{wider}")
