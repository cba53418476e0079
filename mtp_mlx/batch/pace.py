"""How many tokens a batch drafts: as many as pay by measurement, and again by what was accepted so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mtp_mlx.request import Request

if TYPE_CHECKING:
    from mtp_mlx.pipeline import Pipeline

FIRST = 8  # rows for each text at once before the width is chosen again
LATER = 8  # how many times as many before the next time
MOST = 4096  # rows whose acceptance the next choice goes by


@dataclass(frozen=True)
class Pace:
    """What the choice goes by; kept with a job, so that it chooses the same however often it is interrupted.

    Attributes:
        passes: seconds of a pass by its width.
        step: seconds of a draft step.
        chances: of each draft position, how often it is accepted if those before it are.
    """

    passes: Mapping[int, float]
    step: float
    chances: tuple[float, ...]

    def settle(self, request: Request) -> Request:
        """The request with numbers in place of ``auto``."""
        from mtp_mlx.costs import Costs
        from mtp_mlx.rounds import best_width

        costs = Costs(self.passes, self.step)
        width = best_width(costs, self.chances) if request.width is None else request.width
        length = costs.best_length(self.chances, width=width, most=width - 1)
        return replace(request, width=width, draft_length=length)

    def trial(self, request: Request) -> Request | None:
        """The request with the drafts that come nearest to paying; None where nothing can be drafted."""
        from mtp_mlx.costs import Costs

        costs = Costs(self.passes, self.step)
        shapes = [(width, length) for width in self.passes for length in range(1, width)]
        if request.drafter == "plain" or not shapes:
            return None
        width, length = max(shapes, key=lambda shape: costs.rate(self.chances, width=shape[0], length=shape[1]))
        return replace(request, width=width, draft_length=length)

    def after(self, settled: Request, *, rounds: int, accepted: int) -> Pace:
        """The same after rounds of a settled request; plain decode teaches nothing."""
        from mtp_mlx.rounds import corrected

        if not rounds or not settled.drafts:
            return self
        chances = corrected(self.chances, length=settled.drafts, additional=accepted / rounds)
        return replace(self, chances=tuple(chances))

    def to_json(self) -> dict[str, Any]:
        return {"passes": [*self.passes.items()], "step": self.step, "chances": [*self.chances]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Pace:
        return cls(dict(map(tuple, value["passes"])), value["step"], tuple(value["chances"]))


def measure(pipeline: Pipeline, request: Request, *, batch: int) -> Pace:
    """Time rounds of so many texts here, at the width that is asked for, or at several."""
    from mtp_mlx import rounds
    from mtp_mlx.drafters.together import together

    drafter = pipeline.drafter(request.drafter)
    if request.drafter == "plain":
        return Pace({request.width or 1: 1.0}, 1.0, (0.0,) * (request.rows - 1))
    chances = tuple(pipeline.chances(request.drafter, request.task))
    if batch == 1 and request.width is None:
        costs = pipeline.costs(drafter)
    elif batch == 1:
        from mtp_mlx.costs import measure

        costs = measure(pipeline.backbone, drafter, widths=(request.width or 1,))
    else:
        widths = rounds.WIDTHS if request.width is None else (request.width,)
        costs = rounds.measure(pipeline.backbone, together(drafter), size=batch, widths=widths)
    return Pace(costs.passes, costs.step, chances)


def work_through(
    rows: int,
    pace: Pace,
    request: Request,
    *,
    batch: int,
    work: Callable[[range, Request], bool],
    seen: Callable[[range], tuple[int, int]],
) -> None:
    """Do a job's rows in phases, each as the ones before it teach.

    Where drafts were given up, the first rows of a later phase are drafted all the same: that is how it is noticed
    that they would pay by now.

    Args:
        work: does rows with the settled request, and says whether to go on.
        seen: the rounds of rows that are done, and how many drafted tokens were accepted in them.
    """
    beforehand = pace
    drafted = True  # no trial in the first phase: it goes by what is known beforehand
    for phase in phases(rows, batch=batch):
        trial = None if drafted or pace.settle(request).drafts else pace.trial(request)
        parts = [(phase, None)] if trial is None else [(phase[:batch], trial), (phase[batch:], None)]
        for part, given in (each for each in parts if each[0]):
            settled = given or pace.settle(request)
            if not work(part, settled):
                return
            drafted = settled.drafts > 0
            if drafted and part.stop < rows:
                rounds, accepted = seen(part[-MOST:])
                pace = beforehand.after(settled, rounds=rounds, accepted=accepted)


def phases(rows: int, *, batch: int) -> Iterator[range]:
    """The row numbers of a job, cut where the width is chosen again: early, then ever more seldom."""
    start, stop = 0, FIRST * batch
    while start < rows:
        yield range(start, min(stop, rows))
        start, stop = stop, LATER * stop
