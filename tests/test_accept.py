"""Greedy acceptance: what is committed is what plain decode writes, whatever was drafted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtp_mlx.accept import greedy

VOCAB = 4  # few, so that drafts are often right
EOS = 3

ids = st.integers(0, VOCAB - 1)
ends = st.frozensets(ids, max_size=2)


@st.composite
def judged(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """A draft, and the backbone's choice after each of its tokens and before."""
    drafted = draw(st.lists(ids, max_size=7))
    return drafted, draw(st.lists(ids, min_size=len(drafted) + 1, max_size=len(drafted) + 1))


@given(judged(), ends)
def test_committed_tokens_are_the_choices_up_to_the_first_difference_or_end(
    case: tuple[list[int], list[int]], eos: frozenset[int]
):
    drafted, choices = case
    accepted, token = greedy(drafted, choices, eos=eos)
    committed = [*drafted[:accepted], *([] if token is None else [token])]

    expected = []
    for i, choice in enumerate(choices):
        expected.append(choice)
        if choice in eos or i == len(drafted) or drafted[i] != choice:
            break
    assert committed == expected


@given(judged(), ends)
def test_a_token_is_missing_only_behind_an_accepted_end(case: tuple[list[int], list[int]], eos: frozenset[int]):
    drafted, choices = case
    accepted, token = greedy(drafted, choices, eos=eos)
    assert (token is None) == (accepted > 0 and drafted[accepted - 1] in eos)
    assert not eos.intersection(drafted[:accepted][:-1])


@given(judged(), st.randoms(use_true_random=False), ends)
def test_what_lies_behind_the_last_read_row_does_not_matter(case, random, eos: frozenset[int]):
    drafted, choices = case
    accepted, token = greedy(drafted, choices, eos=eos)
    read = accepted + (token is not None)
    other = [*choices[:read], *(random.randrange(VOCAB) for _ in choices[read:])]
    assert greedy(drafted, other, eos=eos) == (accepted, token)


@pytest.mark.parametrize(
    ("drafted", "choices", "outcome"),
    [
        ([], [1], (0, 1)),
        ([], [EOS], (0, EOS)),
        ([1, 2], [1, 2, 0], (2, 0)),
        ([1, 2], [1, 1, 0], (1, 1)),
        ([1, 2], [2, 2, 0], (0, 2)),
        ([1, EOS, 2], [1, EOS, 2, 0], (2, None)),  # a right draft behind the end adds nothing
        ([1, EOS], [1, EOS, 0], (2, None)),
        ([1, EOS], [1, 2, 0], (1, 2)),  # a drafted end that is not verified stops nothing
        ([1, 2], [1, EOS, 0], (1, EOS)),
    ],
)
def test_examples(drafted: list[int], choices: list[int], outcome: tuple[int, int | None]):
    assert greedy(drafted, choices, eos={EOS}) == outcome


Model = Callable[[Sequence[int]], int]
Draft = Callable[[Sequence[int]], list[int]]


def decode(model: Model, draft: Draft, budget: int) -> list[int]:
    """The decode loop without arrays."""
    text: list[int] = []
    while len(text) < budget and EOS not in text:
        drafted = draft(text)[: budget - len(text) - 1]
        choices = [model([*text, *drafted[:i]]) for i in range(len(drafted) + 1)]
        accepted, token = greedy(drafted, choices, eos={EOS})
        text += [*drafted[:accepted], *([] if token is None else [token])]
    return text


@given(
    st.integers(0, 2**32), st.lists(st.lists(st.one_of(st.none(), ids), max_size=7), max_size=30), st.integers(1, 40)
)
def test_any_drafts_give_plain_decode_s_text(seed: int, drafts: list[list[int | None]], budget: int):
    """None stands for the right token at its place."""

    def model(prefix: Sequence[int]) -> int:
        return hash((seed, *prefix)) % 20 % (VOCAB if len(prefix) > 8 else EOS)

    plain = decode(model, lambda text: [], budget)
    assert plain == [model(plain[:i]) for i in range(len(plain))]
    assert len(plain) == budget or plain[-1] == EOS

    left = iter(drafts)

    def draft(text: Sequence[int]) -> list[int]:
        right = [*plain[len(text) :], *[0] * 7]
        return [right[i] if token is None else token for i, token in enumerate(next(left, []))]

    assert decode(model, draft, budget) == plain
