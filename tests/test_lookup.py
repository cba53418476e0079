"""Prompt lookup: it copies what followed the longest earlier match, the latest one."""

from __future__ import annotations

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtp_mlx.drafters.base import Context
from mtp_mlx.drafters.lookup import LookupDrafter, measure
from mtp_mlx.kv import KV

texts = st.lists(st.integers(0, 3), min_size=1, max_size=30)  # few different tokens, so that much repeats
sizes = st.integers(1, 4)


def draft(tokens: list[int], length: int, drafter: LookupDrafter | None = None) -> tuple[int, ...]:
    context = Context(tokens=tokens, kv=KV(1, 1), hidden=mx.zeros((1, 1)), prompt_length=1)
    return (drafter or LookupDrafter()).draft(context, length).ids


def matches(tokens: list[int], n: int) -> list[int]:
    """Where the last n tokens also stand, before the place they end the text at."""
    return [i for i in range(len(tokens) - n) if tokens[i : i + n] == tokens[len(tokens) - n :]]


@pytest.mark.parametrize(
    ("tokens", "continuation"),
    [
        ([1, 2, 3, 9, 1, 2, 3], [9, 1, 2, 3]),
        ([1, 2, 3, 8, 3, 9, 1, 2, 3], [8, 3, 9, 1, 2, 3]),  # a long match beats a later short one
        ([1, 2, 3, 8, 1, 2, 3, 9, 1, 2, 3], [9, 1, 2, 3]),  # the latest of two equal matches
        ([5, 9, 1, 2, 5], [9, 1, 2, 5]),  # one token is enough
        ([7, 7, 7], [7]),  # a match may overlap the end
        ([1, 2, 3], []),
        ([1], []),
    ],
)
def test_examples(tokens: list[int], continuation: list[int]):
    assert LookupDrafter().match(tokens, written=99)[1] == continuation


def test_shorter_matches_than_asked_for_do_not_count():
    assert LookupDrafter(shortest=2).match([5, 9, 1, 2, 5], written=99)[1] == []
    assert LookupDrafter(shortest=2).match([4, 5, 9, 1, 4, 5], written=99)[1] == [9, 1, 4, 5]


def test_longer_matches_than_asked_for_are_not_looked_for():
    tokens = [1, 2, 3, 8, 9, 3, 7, 1, 2, 3]
    assert LookupDrafter(longest=1).match(tokens, written=99)[1] == [7, 1, 2, 3]
    assert LookupDrafter(longest=2).match(tokens, written=99)[1] == [8, 9, 3, 7, 1, 2, 3]


@given(texts, sizes, sizes)
def test_a_continuation_follows_the_latest_of_the_longest_matches(tokens: list[int], longest: int, shortest: int):
    found = LookupDrafter(longest=longest, shortest=shortest).match(tokens, written=99)[1]
    best = max((n for n in range(shortest, longest + 1) if n < len(tokens) and matches(tokens, n)), default=None)
    if best is None:
        assert found == []
    else:
        assert found == tokens[matches(tokens, best)[-1] + best :]
        assert found


@given(texts, st.integers(0, 8))
def test_a_draft_stands_in_the_text_so_far(tokens: list[int], length: int):
    before = list(tokens)
    ids = draft(tokens, length)
    assert tokens == before
    assert len(ids) <= length
    assert any(tuple(tokens[i : i + len(ids)]) == ids for i in range(len(tokens)))


@given(texts, st.integers(1, 8))
def test_a_shorter_draft_is_the_beginning_of_a_longer_one(tokens: list[int], length: int):
    assert draft(tokens, length) == draft(tokens, 100)[:length]
    assert bool(draft(tokens, length)) == (tokens[-1] in tokens[:-1])


def test_no_probabilities_are_made_up():
    context = Context(tokens=[1, 2, 1], kv=KV(1, 1), hidden=mx.zeros((1, 1)), prompt_length=1)
    assert LookupDrafter().draft(context, 4).probabilities == ()


def test_chances_are_counted_by_the_length_of_the_match():
    ids = [1, 2, 3, 9, 1, 2, 3, 9, 8]  # the answer, from the second 1 on: 2, 3 and 9 are copied rightly, 8 is not
    assert measure([(ids, 4)], longest=3) == [2 / 3, 2 / 3, 2 / 4]


def test_how_the_prompt_ends_is_not_looked_for():
    example = [7, 8, 1, 2, 3, 7, 8]  # a worked example between two marks of the turn
    assert LookupDrafter().match(example, written=0) == (0, [])
    assert LookupDrafter().match([*example, 1], written=1) == (1, [2, 3, 7, 8, 1])
    context = Context(tokens=example, kv=KV(1, 1), hidden=mx.zeros((1, 1)), prompt_length=7)
    assert LookupDrafter().draft(context, 4).ids == ()


def test_a_length_that_never_came_up_is_a_guess():
    assert measure([], longest=2) == [0.5, 0.5]


def test_the_length_of_the_match_is_told():
    assert LookupDrafter(longest=8).match([4, 1, 2, 3, 9, 1, 2, 3], written=99) == (3, [9, 1, 2, 3])
    assert LookupDrafter().match([1, 2], written=99) == (0, [])
