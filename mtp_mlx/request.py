"""What a person asks for: one task on one text, checked before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from mtp_mlx.tasks import TASKS

DRAFTERS = ("mtp", "auto", "standalone", "lookup", "plain")
WIDTH = 8
MAX_WIDTH = 64  # rows; far beyond any draft that pays
DRAFT_LENGTH = 4  # on the CPU it was measured on, faster than 7 with the heads so far


@dataclass(frozen=True)
class Request:
    """One run.

    Attributes:
        draft_length: tokens to draft each round, 0 to ``width - 1``; None: 4, or as many as fit.
        width: rows of every verify pass.
        max_tokens: the most tokens to commit; None: the task's own budget.
        inspect: the trace holds what stands behind each token, too; the text and the measured times stay the same.
        profile: the phone whose memory budget is kept; see ``profiles``.

    Raises:
        ValueError: no such task or drafter, or numbers that make no sense together.
    """

    task: str
    text: str
    drafter: str = "mtp"
    draft_length: int | None = None
    width: int = WIDTH
    max_tokens: int | None = None
    profile: str = "none"
    inspect: bool = False

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise ValueError(f"no task is called {self.task!r}: choose {' or '.join(TASKS)}")
        if self.drafter not in DRAFTERS:
            raise ValueError(f"no drafter is called {self.drafter!r}: choose {', '.join(DRAFTERS)}")
        check_numbers(
            max_tokens=1 if self.max_tokens is None else self.max_tokens,
            width=self.width,
            draft_length=self.drafts if self.draft_length is None else self.draft_length,
        )

    @property
    def drafts(self) -> int:
        """Tokens to draft each round, as a number."""
        if self.drafter == "plain":
            return 0
        return min(DRAFT_LENGTH, self.width - 1) if self.draft_length is None else self.draft_length


def check_numbers(*, max_tokens: int, width: int, draft_length: int) -> None:
    """Raise ValueError, in one line, for numbers that make no sense together."""
    if max_tokens < 1:
        raise ValueError(f"max tokens is {max_tokens}: give at least 1")
    if not 1 <= width <= MAX_WIDTH:
        raise ValueError(f"width is {width}: give 1 to {MAX_WIDTH} rows")
    if not 0 <= draft_length < width:
        raise ValueError(f"draft length {draft_length} does not fit width {width}: give 0 to {width - 1}")
