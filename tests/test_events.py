"""Events: what a round commits, and the way to JSON and back."""

from __future__ import annotations

import dataclasses
import json

import pytest
from conftest import rounds
from hypothesis import given

from mtp_mlx.events import Done, Draft, Prefilled, Round


@given(rounds())
def test_json_round_trip(round: Round):
    assert Round.from_json(json.loads(json.dumps(round.to_json()))) == round


@given(rounds())
def test_a_round_commits_its_accepted_tokens_and_the_backbone_s_own(round: Round):
    assert round.committed[: round.accepted] == round.drafted[: round.accepted]
    assert round.committed[round.accepted :] == (() if round.token is None else (round.token,))


@pytest.mark.parametrize("event", [Draft((1, 2)), Prefilled(5, 0.1), Done("end")])
def test_events_do_not_change(event: Draft | Prefilled | Done):
    first = dataclasses.fields(event)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(event, first, None)


def test_a_field_that_is_unknown_or_missing_is_refused():
    fields = Round((1,), (), 0, 2, "correction", 0.5, 0.1, 0.2).to_json()
    with pytest.raises(TypeError):
        Round.from_json(fields | {"more": 1})
    with pytest.raises((TypeError, KeyError)):
        Round.from_json({name: value for name, value in fields.items() if name != "accepted"})
