"""One job, several processes: they share its rows, go on together, and stop together."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from capitals import capitals, rows, work

from mtp_mlx.batch.files import Job, claim, owned
from mtp_mlx.batch.streams import BatchError


@pytest.fixture
def source(tmp_path):
    return rows(tmp_path / "in.jsonl", 9, bad=(6,))


def test_processes_share_what_is_left(source, output):
    """The ranks in turn, each with the journal as it was when all began."""
    jobs = [Job(source, output, about={}, rank=rank, size=3) for rank in range(3)]
    shares = []
    for job in jobs[:2]:  # the third one dies
        asked = []
        job.run(capitals, seen=asked.append)
        shares.append(len(asked))
    for job in jobs:
        job.journal.close()
    assert shares == [3, 3]
    assert [job.finish() for job in jobs] == [None] * 3

    jobs = [Job(source, output, about={}, rank=rank, size=2) for rank in range(2)]  # the three that are left, two ways
    for job, share in zip(jobs, (2, 1), strict=True):
        asked = []
        job.run(capitals, seen=asked.append)
        assert len(asked) == share
    assert jobs[1].finish() is None
    assert jobs[0].finish().rows == 9
    alone = output.with_name("alone.jsonl")
    work(source, alone, about={})
    assert output.read_bytes() == alone.read_bytes()


class Meeting:
    """What waits for several processes, for threads that stand for them."""

    def __init__(self, size):
        self.barrier, self.said = threading.Barrier(size, timeout=60), [False] * size

    def of(self, rank):
        def meet(mine):
            self.said[rank] = mine
            self.barrier.wait()
            anyone = any(self.said)
            self.barrier.wait()
            return anyone

        return meet


def together(size, work):
    """What ``work(rank, meet)`` returns in each of so many threads."""
    meeting = Meeting(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: work(rank, meeting.of(rank)), range(size)))


def test_processes_go_from_part_to_part_together_and_count_the_same(source, output):
    def share(rank, meet):
        job = Job(source, output, about={}, rank=rank, size=3, meet=meet, measure=lambda: {"by": rank})
        tallies = []
        for part in (range(5), range(5, 9)):
            assert job.run(capitals, rows=part)
            tallies.append(job.tally(part))
        return job.measured, tallies, job.finish()

    told = together(3, share)
    assert [measured for measured, _, _ in told] == [{"by": 0}] * 3
    assert told[0][1] == told[1][1] == told[2][1]
    assert [tally.rows for tally in told[0][1]] == [5, 4]
    assert [summary and summary.rows for _, _, summary in told] == [9, None, None]


def test_all_processes_stop_where_one_is_told_to(source, output):
    def share(rank, meet):
        job = Job(source, output, about={}, rank=rank, size=2, meet=meet, stopping=lambda: rank == 1)
        return job.run(capitals, rows=range(4)), job.finish()

    assert together(2, share) == [(False, None)] * 2
    assert work(source, output, about={}).rows == 9


def test_two_runs_at_once_are_refused_before_anything_is_begun(source, output):
    with owned(output):
        with pytest.raises(BatchError, match="another run"), owned(output):
            pass
        with owned(output, rank=1):  # another process of the same run
            work(source, output, about={})
    assert not claim(output.with_name("else")).exists()
