"""How many tokens a batch drafts: chosen before it begins, and again by what was accepted, the same every time."""

import json

from hypothesis import given
from hypothesis import strategies as st

from mtp_mlx.batch.pace import Pace, measure, phases
from mtp_mlx.pipeline import Pipeline
from mtp_mlx.request import Request

AUTO = Request(task="proofread", text="", drafter="lookup", draft_length="auto")
CHEAP = Pace({1: 1.0, 2: 1.1, 4: 1.2}, 0.01, (0.8,) * 7)


def test_it_settles_on_numbers():
    settled = CHEAP.settle(AUTO)
    assert (settled.width, settled.draft_length) == (4, 3)
    fixed = CHEAP.settle(Request(task="proofread", text="", drafter="lookup", draft_length="auto", width=2))
    assert (fixed.width, fixed.draft_length) == (2, 1)


def test_drafts_that_are_not_accepted_are_given_up():
    settled = CHEAP.settle(AUTO)
    kept = CHEAP.after(settled, rounds=100, accepted=240).settle(AUTO)
    assert kept == settled
    plain = CHEAP.after(settled, rounds=100, accepted=4)
    assert (plain.settle(AUTO).width, plain.settle(AUTO).draft_length) == (1, 0)
    assert plain.after(plain.settle(AUTO), rounds=100, accepted=0) == plain  # plain decode teaches nothing


def test_it_is_kept_as_json():
    assert Pace.from_json(json.loads(json.dumps(CHEAP.to_json()))) == CHEAP


@given(st.integers(0, 100_000), st.integers(1, 16))
def test_phases_are_all_rows_once_and_few(rows, batch):
    cut = list(phases(rows, batch=batch))
    assert [number for part in cut for number in part] == list(range(rows))
    assert len(cut) < 7
    assert all(cut)


def test_plain_decode_needs_no_measurement(tiny):
    for batch in (1, 3):
        request = Request(task="proofread", text="", drafter="plain", draft_length="auto")
        settled = measure(Pipeline(tiny), request, batch=batch).settle(request)
        assert (settled.width, settled.draft_length) == (1, 0)


def test_a_width_that_is_asked_for_is_kept(tiny):
    request = Request(task="proofread", text="", drafter="lookup", draft_length="auto", width=3)
    for batch in (1, 2):
        pace = measure(Pipeline(tiny), request, batch=batch)
        assert list(pace.passes) == [3]
        assert pace.settle(request).width == 3
