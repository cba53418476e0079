"""Drafts of the length that commits most tokens a second, by what was accepted so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mtp_mlx.costs import Costs
from mtp_mlx.drafters.base import Context, Drafter
from mtp_mlx.events import Draft, Guess, Round

MEMORY = 0.98  # what a round counts for, one round later: fifty rounds or so are remembered
TRUST = 2.0  # how many rounds the chances that were measured beforehand count for


class PacedDrafter(Drafter):
    """Another drafter, asked for as many tokens as pay, none included.

    Each position's chance of being accepted is what was measured beforehand, corrected by the rounds of this text. What
    is not seen is forgotten, so that a drafter that was given up is tried again.
    """

    def __init__(self, drafter: Drafter, costs: Costs, *, width: int, chances: Sequence[float]):
        """``chances``: for each position, measured beforehand: how often it is accepted if those before it are."""
        self.name = drafter.name
        self.drafter = drafter
        self.costs = costs
        self.width = width
        self.before = chances

    def to_json(self) -> dict[str, Any]:
        """What it goes by, before a text begins."""
        return {"passes": dict(self.costs.passes), "step": self.costs.step, "chances": list(self.before[: self.width])}

    def start(self, context: Context) -> None:
        self.drafter.start(context)
        self._accepted = [0.0] * len(self.before)
        self._tried = [0.0] * len(self.before)

    @property
    def chances(self) -> list[float]:
        """Of each position, as they stand."""
        rows = zip(self._accepted, self._tried, self.before, strict=True)
        return [(accepted + TRUST * before) / (tried + TRUST) for accepted, tried, before in rows]

    def draft(self, context: Context, length: int) -> Draft:
        length = self.costs.best_length(self.chances, width=self.width, most=min(length, len(self.before)))
        return self.drafter.draft(context, length) if length else Draft()

    def look(self, context: Context, draft: Draft) -> tuple[Guess, ...]:
        return self.drafter.look(context, draft)

    def observe(self, context: Context, outcome: Round) -> None:
        self.drafter.observe(context, outcome)
        judged = min(outcome.accepted + 1, len(outcome.drafted))  # what follows a rejected token is not judged
        if outcome.token is None:  # a verified end-of-text was the draft's
            judged = outcome.accepted
        for position in range(len(self.before)):
            self._accepted[position] = MEMORY * self._accepted[position] + (position < outcome.accepted)
            self._tried[position] = MEMORY * self._tried[position] + (position < judged)
