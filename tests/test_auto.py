"""Joined drafting: the draft with the most to expect, the head's own where it is as good."""

from __future__ import annotations

import itertools

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtp_mlx.drafters.auto import AutoDrafter, expected
from mtp_mlx.drafters.base import Context, Drafter
from mtp_mlx.events import Draft
from mtp_mlx.kv import KV

CHANCES = (0.2, 0.5, 0.8, 0.9)


class Head(Drafter):
    """Says what it is told to."""

    def __init__(self, ids: list[int], probabilities: list[float]):
        self.own = Draft(tuple(ids), tuple(probabilities))

    def draft(self, context: Context, length: int) -> Draft:
        return Draft(self.own.ids[:length], self.own.probabilities[:length])


def draft(tokens: list[int], head: Head, length: int = 4, chances: tuple[float, ...] = CHANCES) -> Draft:
    context = Context(tokens=tokens, kv=KV(1, 1), hidden=mx.zeros((1, 1)), prompt_length=1)
    return AutoDrafter(head, chances).draft(context, length)


REPEATS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]  # 4 5 6 7 comes next if it goes on as before


def test_a_sure_head_is_left_alone():
    assert draft(REPEATS, Head([20, 21, 22, 23], [0.99] * 4)).ids == (20, 21, 22, 23)


def test_a_long_match_beats_a_head_that_does_not_know():
    made = draft(REPEATS, Head([20, 21, 22, 23], [0.3] * 4))
    assert made.ids == (4, 5, 6, 7)
    assert made.probabilities == pytest.approx((0.8 * (1 - 0.3), 0.9, 0.9, 0.9))  # its chance of what the head leaves


def test_the_copy_goes_on_where_the_head_agrees_with_it():
    tokens = [*REPEATS[:9], 30, 1]  # a match of one token is worth little, of three with the head's two much
    made = draft(tokens, Head([2, 3, 22, 23], [0.9, 0.9, 0.2, 0.2]))
    assert made.ids == (2, 3, 4, 5)
    assert made.probabilities == pytest.approx((0.9, 0.9, 0.8 * (1 - 0.2), 0.9))


def test_a_copy_has_its_chance_of_what_the_head_leaves():
    """However long the match is: a head that is sure of another token is seldom wrong."""
    sure_once = Head([20, 21, 22, 23], [0.9, 0.2, 0.2, 0.2])
    assert draft(REPEATS, sure_once).ids == (20, 21, 22, 23)
    assert draft(REPEATS, Head([4, 21, 22, 23], [0.9, 0.2, 0.2, 0.2])).ids == (4, 5, 6, 7)  # it agrees at first


def test_nothing_to_copy():
    assert draft([1, 2, 3], Head([20, 21], [0.01, 0.01])).ids == (20, 21)


def test_expected_tokens():
    assert expected(Draft((1, 2, 3), (0.5, 0.5, 1.0))) == pytest.approx(0.5 + 0.25 + 0.25)
    assert expected(Draft()) == 0


texts = st.lists(st.integers(0, 3), min_size=1, max_size=20)
heads = st.lists(st.tuples(st.integers(0, 3), st.floats(0.01, 1)), min_size=7, max_size=7)


@given(texts, heads, st.integers(0, 7))
def test_no_splice_promises_more(tokens, pairs, length):
    ids, probabilities = zip(*pairs, strict=True)
    head = Head(list(ids), list(probabilities))
    made = draft(tokens, head, length)
    assert len(made.ids) == len(made.probabilities) <= length
    assert expected(made) >= expected(head.draft(Context(tokens, KV(1, 1), mx.zeros((1, 1)), 1), length))
    own = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(made.ids, ids, strict=False)))
    rest = made.ids[own:]
    assert any(tuple([*tokens, *ids[:own]][i : i + len(rest)]) == rest for i in range(len(tokens) + own))
