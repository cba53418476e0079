"""Drafts as long as pay: none where nothing is accepted, long ones where all is, and the text is the same."""

from __future__ import annotations

import json

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtp_mlx.backbone import Backbone
from mtp_mlx.costs import Costs
from mtp_mlx.decode import plain, speculative
from mtp_mlx.drafters.base import Context, Drafter
from mtp_mlx.drafters.paced import Chances, PacedDrafter
from mtp_mlx.events import Draft, Round

COSTS = Costs({1: 1.0, 8: 1.2}, step=0.08)


class Oracle(Drafter):
    """Drafts the text that is to come, or what it cannot be."""

    name = "oracle"

    def __init__(self, text: list[int], *, right: bool):
        self.text = text
        self.right = right
        self.seen: list[int] = []

    def draft(self, context: Context, length: int) -> Draft:
        at = len(context.tokens) - context.prompt_length
        ids = self.text[at : at + length]
        return Draft(tuple(ids if self.right else [id + 1 for id in ids]))

    def observe(self, context: Context, outcome: Round) -> None:
        self.seen.append(len(outcome.drafted))


def rounds(events) -> list[Round]:
    return [event for event in events if isinstance(event, Round)]


@pytest.mark.parametrize("right", [True, False])
def test_length_follows_what_is_accepted_and_the_text_is_plain_decodes(tiny: Backbone, right: bool):
    prompt, most = [5, 9, 200, 7], 120
    text = [id for round in rounds(plain(tiny, prompt, max_tokens=most)) for id in round.committed]
    oracle = Oracle(text, right=right)
    paced = PacedDrafter(oracle, COSTS, width=8, chances=[0.6] * 7)
    made = rounds(speculative(tiny, prompt, drafter=paced, max_tokens=most, width=8))
    assert [id for round in made for id in round.committed] == text
    lengths = [len(round.drafted) for round in made if round.kind != "first"]
    assert oracle.seen == lengths  # the drafter is told of every round
    assert paced.name == "oracle"
    if right:
        assert lengths[:-2] == sorted(lengths[:-2])
        assert max(lengths) == 7
    else:
        assert lengths[0] > 0
        late = lengths[most // 2 :]
        assert sum(late) < 0.5 * sum(lengths[: len(late)])
        assert late.count(0) > len(late) / 2
        assert any(late)  # given up, and tried again
        assert len(made) == most


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.booleans()), max_size=30))
def test_chances_stay_chances_and_unread_tokens_do_not_count(outcomes: list[tuple[int, int, bool]]):
    paced = PacedDrafter(Drafter(), COSTS, width=8, chances=[0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    context = Context([1], None, mx.zeros((1, 1)), 1)  # type: ignore[arg-type]
    paced.start(context)
    assert paced.chances == pytest.approx(list(paced.before))
    for drafted, accepted, ends in outcomes:
        accepted = min(drafted, accepted)
        ends = ends and accepted > 0
        kind = "end" if ends else "plain" if not drafted else "bonus" if accepted == drafted else "correction"
        before = paced.chances
        paced.observe(context, Round((1,) * drafted, (), accepted, None if ends else 2, kind, 0.0, 0.0, 0.0))
        assert all(0 <= chance <= 1 for chance in paced.chances)
        for position, (old, new) in enumerate(zip(before, paced.chances, strict=True)):
            if position < accepted:
                assert new >= old - 0.02 * abs(old - paced.before[position]) - 1e-9
            elif position == accepted < drafted and not ends:
                assert new < old or old == 0
            else:  # not judged: back towards what was measured beforehand
                assert abs(new - paced.before[position]) <= abs(old - paced.before[position]) + 1e-9


def test_what_was_asked_for_and_not_found_was_wrong():
    """A drafter that finds nothing to copy brings as little as one that is wrong."""
    context = Context([1], None, mx.zeros((1, 1)), 1)  # type: ignore[arg-type]
    known = Chances([0.5] * 7)
    paced = PacedDrafter(Drafter(), COSTS, width=8, chances=known.now, told=known)
    paced.start(context)
    for _ in range(9):
        paced.draft(context, 7)
        paced.observe(context, Round((), (), 0, 3, "plain", 0.0, 0.0, 0.0))
    assert known.now == paced.chances
    assert known.now[0] < 0.2
    assert known.now[1:] == [0.5] * 6
    for _ in range(200):  # at a draft length of 0 nothing is learnt, and what was is forgotten
        paced.draft(context, 0)
        paced.observe(context, Round((), (), 0, 3, "plain", 0.0, 0.0, 0.0))
    assert known.now[0] > 0.45


def test_a_new_text_starts_from_what_was_measured():
    paced = PacedDrafter(Drafter(), COSTS, width=8, chances=[0.5] * 7)
    context = Context([1], None, mx.zeros((1, 1)), 1)  # type: ignore[arg-type]
    paced.start(context)
    paced.observe(context, Round((1, 2), (), 0, 3, "correction", 0.0, 0.0, 0.0))
    assert paced.chances[0] < 0.5
    paced.start(context)
    assert paced.chances == [0.5] * 7


def test_what_it_goes_by_is_json_as_it_is():
    """Strict writers of JSON take no numbers for keys."""
    told = PacedDrafter(Drafter(), COSTS, width=8, chances=[0.5] * 7).to_json()
    assert json.loads(json.dumps(told)) == told
