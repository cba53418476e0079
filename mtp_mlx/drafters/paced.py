"""Drafts of the length that commits most tokens a second, by what was accepted so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mtp_mlx.costs import Costs
from mtp_mlx.drafters.base import Context, Drafter, Proposal
from mtp_mlx.events import Draft, Guess, Round

MEMORY = 0.98  # what a round counts for, one round later: fifty rounds or so are remembered
TRUST = 2.0  # how many rounds the chances that were measured beforehand count for


class Chances:
    """For each draft position, how often it is accepted if those before it are.

    It is what was measured beforehand, corrected by the rounds that were seen. What is not seen any more is forgotten,
    so that a drafter that was given up is tried again.
    """

    def __init__(self, before: Sequence[float]):
        self.before = before
        self._accepted = [0.0] * len(before)
        self._tried = [0.0] * len(before)

    @property
    def now(self) -> list[float]:
        """Of each position, as they stand."""
        rows = zip(self._accepted, self._tried, self.before, strict=True)
        return [(accepted + TRUST * before) / (tried + TRUST) for accepted, tried, before in rows]

    def add(self, outcome: Round, *, asked: int) -> None:
        """A round for which ``asked`` tokens were to be drafted: one that was not found to draft is a wrong one."""
        judged = min(outcome.accepted + 1, max(asked, len(outcome.drafted)))  # what follows a wrong one is not judged
        if outcome.token is None:  # a verified end-of-text was the draft's
            judged = outcome.accepted
        for position in range(len(self.before)):
            self._accepted[position] = MEMORY * self._accepted[position] + (position < outcome.accepted)
            self._tried[position] = MEMORY * self._tried[position] + (position < judged)


class PacedDrafter(Drafter):
    """Another drafter, asked for as many tokens as pay, none included, by the chances as this text's rounds show them.

    Args:
        chances: of each position, before a text begins.
        told: is told of every round, too: what is known of other texts of the kind.
    """

    def __init__(
        self, drafter: Drafter, costs: Costs, *, width: int, chances: Sequence[float], told: Chances | None = None
    ):
        self.name = drafter.name
        self.drafter = drafter
        self.costs = costs
        self.width = width
        self.before = chances
        self.told = told

    def to_json(self) -> dict[str, Any]:
        """What it goes by, before a text begins."""
        return {
            "passes": {str(width): seconds for width, seconds in self.costs.passes.items()},
            "step": self.costs.step,
            "chances": list(self.before[: self.width]),
        }

    def start(self, context: Context) -> None:
        self.drafter.start(context)
        self._chances = Chances(self.before)
        self._asked = 0

    @property
    def chances(self) -> list[float]:
        """Of each position, as they stand."""
        return self._chances.now

    def draft(self, context: Context, length: int) -> Draft:
        return self.drafter.draft(context, self._asked) if self._ask(length) else Draft()

    def propose(self, context: Context, length: int) -> Draft | Proposal:
        return self.drafter.propose(context, self._asked) if self._ask(length) else Draft()

    def _ask(self, length: int) -> int:
        most = min(length, len(self.before))
        self._asked = self.costs.best_length(self.chances, width=self.width, most=most)
        return self._asked

    def look(self, context: Context, draft: Draft) -> tuple[Guess, ...]:
        return self.drafter.look(context, draft)

    def observe(self, context: Context, outcome: Round) -> None:
        self.drafter.observe(context, outcome)
        for chances in (self._chances, self.told):
            if chances is not None:
                chances.add(outcome, asked=self._asked)
