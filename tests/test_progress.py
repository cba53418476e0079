"""How far a batch is: a line a minute where there is no terminal, as JSON where that is asked for, or nothing."""

import json

import pytest

from mtp_mlx.batch import progress
from mtp_mlx.batch.progress import Progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on 25 seconds each time that it is read."""
    now = iter(range(0, 100_000, 25))
    monkeypatch.setattr(progress, "monotonic", lambda: float(next(now)))


def told(capfd, **options):
    bar = Progress(100, done=40, **options)
    for i in range(9):
        bar.add({"error": "no"} if i == 0 else {"accepted": 3, "rounds": 2})
    bar.close()
    return capfd.readouterr().err.splitlines()


def test_a_line_a_minute(capfd, clock):
    lines = told(capfd)
    assert 2 <= len(lines) <= 4
    assert all(line.count(" of 100 rows") == 1 and "left" in line and "a minute" in line for line in lines)
    assert "additional 1.5" in lines[0]
    assert "failed 1" in lines[0]


def test_as_json(capfd, clock):
    first, *_ = map(json.loads, told(capfd, as_json=True))
    assert first["of"] == 100
    assert first["rows"] > 40
    assert first["failed"] == 1
    assert first["seconds_left"] == pytest.approx((100 - first["rows"]) / first["rows_per_second"], rel=0.05)


def test_the_shape_is_told_when_it_is_whole_or_new(capfd):
    for options, read in (({}, str), ({"as_json": True}, lambda line: json.loads(line)["note"])):
        bar = Progress(100, **options)
        bar.tell(batch=8)
        bar.tell(width=3, draft_length=2)
        bar.tell(width=3, draft_length=2)
        bar.tell(width=1, draft_length=0)
        bar.close()
        first, second = map(read, capfd.readouterr().err.splitlines())
        assert "8 texts at once, 3 rows" in first
        assert "1 row" in second
    bar = Progress(100, quiet=True)
    bar.tell(batch=8, width=3, draft_length=2)
    assert capfd.readouterr().err == ""


def test_quiet(capfd, clock):
    assert told(capfd, quiet=True) == []
