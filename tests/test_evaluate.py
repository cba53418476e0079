"""The confidence interval of an evaluation."""

import numpy as np
import pytest

from mtp_mlx.evaluate import interval


def test_texts_that_are_all_alike_leave_no_doubt():
    assert interval([(6, 4)] * 10) == pytest.approx([1.5, 1.5])
    assert interval([(6, 4)]) == interval([]) == []


def test_more_texts_narrow_it():
    draws = np.random.default_rng(1).integers(0, 20, size=(400, 2)) + np.array([0, 5])
    few, many = (interval([tuple(row) for row in draws[:n]]) for n in (25, 400))
    assert many[1] - many[0] < 0.5 * (few[1] - few[0])


def test_it_holds_the_truth_about_as_often_as_it_says():
    random = np.random.default_rng(2)
    rounds = random.integers(5, 30, size=(200, 30))
    accepted = random.binomial(rounds * 4, 0.3)  # 1.2 a round
    hits = 0
    for a, r in zip(accepted, rounds, strict=True):
        low, high = interval(list(zip(a.tolist(), r.tolist(), strict=True)), samples=500)
        hits += low <= 1.2 <= high
    assert 0.85 <= hits / 200 <= 0.99


def test_texts_without_a_round_say_nothing_of_acceptance():
    some = [(4, 2), (9, 3), (3, 3)]
    assert interval([*some, *[(0, 0)] * 5]) == interval(some)
    assert interval([(4, 1), (0, 0)]) == []
