"""What a round of several texts costs, and the width that pays: down to one row, which is plain decode."""

from itertools import accumulate
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtp_mlx.costs import Costs
from mtp_mlx.drafters.together import together
from mtp_mlx.pipeline import Pipeline
from mtp_mlx.rounds import best_width, corrected, measure

FLAT = Costs({1: 1.0, 2: 1.0, 4: 1.0, 8: 1.5}, 0.01)
STEEP = Costs({1: 1.0, 2: 2.0, 4: 4.0}, 0.01)
BENT = Costs({1: 1.0, 2: 1.5, 4: 3.0}, 0.0)


@pytest.mark.parametrize(
    ("costs", "chance", "width"),
    [(FLAT, 0.7, 4), (FLAT, 0.0, 1), (STEEP, 0.9, 1), (Costs({1: 1, 2: 1.5, 4: 3}, 0), 0.8, 2)],
)
def test_the_width_that_commits_most_tokens_a_second(costs, chance, width):
    assert best_width(costs, [chance] * 7) == width


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=7), st.integers(1, 7), st.floats(0, 1))
def test_corrected_chances_bring_what_was_seen(chances, length, share):
    length = min(length, len(chances))
    additional = share * length
    brought = sum(accumulate(corrected(chances, length=length, additional=additional)[:length], mul))
    assert brought == pytest.approx(additional, abs=1e-3)


def test_what_was_expected_needs_no_correction():
    assert corrected([0.5, 0.8], length=2, additional=0.9) == pytest.approx([0.5, 0.8])


def test_every_width_is_measured(tiny):
    costs = measure(tiny, together(Pipeline(tiny).drafter("lookup")), size=3, widths=(1, 2, 5), turns=2)
    assert list(costs.passes) == [1, 2, 5]
    assert all(0 < seconds < 60 for seconds in (*costs.passes.values(), costs.step))
