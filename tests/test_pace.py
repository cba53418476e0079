"""How many tokens a batch drafts: chosen before it begins, and again by what was accepted, the same every time."""

import json

from hypothesis import given
from hypothesis import strategies as st

from mtp_mlx.batch.pace import Pace, measure, phases, work_through
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


def worked(pace: Pace, accepted, *, rows: int = 2000, batch: int = 2, request: Request = AUTO):
    """(rows, width, draft length) of each part of a job; ``accepted(row)`` is how many tokens a draft there brings."""
    parts = []

    def work(part: range, settled: Request) -> bool:
        parts.append((part, settled.rows, settled.drafts))
        return True

    def seen(part: range) -> tuple[int, int]:
        return 1000, round(1000 * accepted(part.start))

    work_through(rows, pace, request, batch=batch, work=work, seen=seen)
    assert [row for part, *_ in parts for row in part] == list(range(rows))
    return parts


def test_drafts_that_were_given_up_are_tried_again():
    """The first rows of a later phase are drafted, and the rest of it goes by them."""
    parts = worked(CHEAP, lambda row: 0.0 if row < 100 else 2.4)
    assert [shape for _, *shape in parts] == [[4, 3], [1, 0], [2, 1], [4, 3], [4, 3]]
    trial = parts[2][0]
    assert (trial.start, len(trial)) == (128, 2)


def test_drafts_that_never_pay_are_tried_seldom():
    parts = worked(CHEAP, lambda row: 0.0, rows=5000)
    drafted = sum(len(part) for part, _, length in parts if length)
    assert [length > 0 for _, _, length in parts] == [True, False, True, False, True, False]
    assert drafted == 16 + 2 + 2


def test_drafts_that_pay_and_what_cannot_be_drafted_need_no_trial():
    assert [len(part) for part, *_ in worked(CHEAP, lambda row: 2.4)] == [16, 112, 896, 976]
    narrow = Pace({1: 1.0}, 0.01, (0.8,) * 7)
    assert all(length == 0 for _, _, length in worked(narrow, lambda row: 0.0))


def test_work_that_is_stopped_goes_no_further():
    parts = []
    work_through(99, CHEAP, AUTO, batch=1, work=lambda part, _: bool(parts.append(part)), seen=lambda part: (1, 1))
    assert parts == [range(8)]


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
