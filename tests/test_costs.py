"""What passes and drafts cost, and which width and length follow from it."""

from __future__ import annotations

from itertools import accumulate
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtp_mlx.backbone import Backbone
from mtp_mlx.costs import BETTER, WIDTHS, Costs, measure
from mtp_mlx.drafters.base import Context, Drafter
from mtp_mlx.drafters.lookup import LookupDrafter
from mtp_mlx.events import Draft

FLAT = Costs({1: 1.0, 4: 1.0, 8: 1.0}, step=0.1)  # memory-bound: rows are free
LINEAR = Costs({width: float(width) for width in (1, 4, 8)}, step=0.1)

seconds = st.floats(1e-4, 10)
shares = st.lists(st.floats(0, 1), min_size=7, max_size=7)


def test_the_rate_is_tokens_that_can_be_expected_over_seconds():
    assert FLAT.rate([0.5, 0.5, 0.9], width=8, length=0) == 1
    assert FLAT.rate([0.5, 0.5, 0.9], width=8, length=2) == pytest.approx((1 + 0.5 + 0.25) / 1.2)


@given(passes=st.fixed_dictionaries({1: seconds, 4: seconds, 8: seconds}), step=seconds, chances=shares)
def test_no_length_and_no_width_commits_more(passes: dict[int, float], step: float, chances: list[float]):
    costs = Costs(passes, step)

    def rate(width: int, length: int) -> float:
        return (1 + sum(accumulate(chances[:length], mul))) / (passes[width] + length * step)

    best = costs.best_length(chances, width=8, most=7)
    assert all(rate(8, best) >= rate(8, length) for length in range(8))
    width = costs.best_width(chances, usual=8)
    fastest = {w: max(rate(w, length) for length in range(w)) for w in passes}
    assert fastest[width] >= fastest[8]
    assert width == 8 or fastest[width] == max(fastest.values())
    assert width != 8 or max(fastest.values()) <= BETTER * fastest[8] + 1e-9
    assert fastest[width] >= fastest[1]  # never slower than plain decode


def test_drafts_grow_with_what_is_accepted_and_are_none_where_they_do_not_pay():
    lengths = [FLAT.best_length([chance] * 7, width=8, most=7) for chance in (0.0, 0.05, 0.3, 0.6, 0.95)]
    assert lengths == sorted(lengths)
    assert lengths[0] == lengths[1] == 0
    assert lengths[-1] == 7
    assert FLAT.best_length([0.95] * 7, width=8, most=2) == 2


def test_passes_that_cost_by_the_row_are_plain_ones():
    assert LINEAR.best_width([0.6] * 7, usual=8) == 1
    assert FLAT.best_width([0.6] * 7, usual=8) == 8


def test_the_usual_width_is_kept_where_another_is_hardly_faster_but_not_below_plain_decode():
    costs = Costs({1: 1.0, 4: 1.16, 8: 1.2}, step=0.0)
    assert costs.best_width([0.6, 0.3, 0.1, *[0.0] * 4], usual=8) == 8
    assert costs.best_width([0.6, 0.3, 0.1, *[0.0] * 4], usual=4) == 4
    assert costs.best_width([0.19, *[0.0] * 6], usual=8) == 4
    assert costs.best_width([0.1, *[0.0] * 6], usual=8) == 1


@pytest.mark.parametrize("drafter", [Drafter(), LookupDrafter()])
def test_every_width_is_measured_even_without_time(tiny: Backbone, drafter: Drafter):
    costs = measure(tiny, drafter, seconds=0)
    assert tuple(costs.passes) == WIDTHS
    assert all(0 < cost < 60 for cost in (*costs.passes.values(), costs.step))


def test_the_step_is_the_drafters_own_time(tiny: Backbone):
    """A drafter that is asked for n tokens and takes n times a while."""

    class Slow(Drafter):
        asked = 0

        def draft(self, context: Context, length: int) -> Draft:
            sum(range(length * 400_000))
            self.asked += length
            return Draft()

    slow, none = Slow(), Drafter()
    assert measure(tiny, slow, seconds=0).step > 20 * measure(tiny, none, seconds=0).step
    assert slow.asked > 0
