"""The journal: what was recorded is there again, wherever the file breaks off."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtp_mlx.batch.journal import Journal
from mtp_mlx.batch.streams import BatchError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ENTRIES = st.dictionaries(st.integers(0, 60), TEXT, max_size=8)
LEFT = st.sampled_from([b"", b"\0\0\0\0", b'{"row": 5', b"\xff\n{}\n", b'{"row": 3}\n', b"[]\n"])


@pytest.fixture
def folder(tmp_path_factory):
    def fresh():
        return tmp_path_factory.mktemp("journal")

    return fresh


def fill(folder, entries, **options):
    journal = Journal(folder, **options)
    for row, text in entries.items():
        journal.add(row, len(text), {"text": text})
    journal.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(ENTRIES, ENTRIES, LEFT, st.integers(0, 40))
def test_it_goes_on_behind_the_last_whole_line(folder, first, second, left, cut):
    """Whatever the first run left behind its last whole line, or lost of it."""
    path = folder()
    fill(path, first)
    file = path / "rows-0.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[: max(0, len(whole) - cut)] + left)
    kept = whole[: max(0, len(whole) - cut)]
    kept = {json.loads(line)["row"] for line in kept[: kept.rfind(b"\n") + 1].splitlines()}
    fill(path, second)
    journal = Journal(path, rank=None)
    done = {row: text for row, text in first.items() if row in kept} | second
    assert journal.done == len(done)
    for row in range(62):
        assert journal.has(row, len(done.get(row, ""))) == (row in done)
    assert {row: journal.result(row) for row in done} == {row: {"text": text} for row, text in done.items()}
    journal.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(st.lists(ENTRIES, min_size=1, max_size=4))
def test_files_of_several_processes_are_one(folder, shares):
    path = folder()
    done = {}
    for rank, share in enumerate(shares):
        fill(path, share, rank=rank)
        done |= {row: text for row, text in share.items() if row not in done} | share
    journal = Journal(path, rank=0)
    assert {row: journal.result(row)["text"] for row in done} == done
    assert journal.done == len(done)
    journal.close()


def test_a_row_that_has_changed_is_not_done(folder):
    path = folder()
    fill(path, {3: "four"})
    journal = Journal(path)
    assert journal.has(3, 4)
    assert not journal.has(3, 5)
    assert not journal.has(2, 0)
    journal.close()


def test_two_runs_at_once_are_refused(folder):
    path = folder()
    journal = Journal(path)
    with pytest.raises(BatchError, match="another run"):
        Journal(path)
    Journal(path, rank=1).close()
    journal.close()
    Journal(path).close()
