"""Files in, files out: killed at any moment, the same command goes on, and nothing is lost, doubled or overwritten."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
from ending import ended, until

from mtp_mlx.batch.files import Job, claim, owned, spool
from mtp_mlx.batch.rows import Source
from mtp_mlx.batch.streams import BatchError

ROOT = Path(__file__).resolve().parent.parent

# A whole run without a model: each text comes back in capitals, four at a time and the last of them first.
WORK = """
import sys
from hashlib import pbkdf2_hmac
from itertools import islice
from pathlib import Path
from mtp_mlx.batch.files import Job, owned
from mtp_mlx.batch.rows import Source

def answer(texts):
    texts = iter(texts)
    while hand := list(islice(texts, 4)):
        for number, text in reversed(hand):
            pbkdf2_hmac('sha256', text.encode(), b'', int(sys.argv[3]))  # work for a kill to fall into
            yield number, {"text": text.upper(), "tokens": number}

with owned(Path(sys.argv[2])):
    job = Job(Source(Path(sys.argv[1]), "jsonl"), Path(sys.argv[2]), about={})
    job.run(answer)
    done = job.finish()
sys.exit(0 if done else 3)
"""


def capitals(texts):
    for number, text in texts:
        yield number, {"text": text.upper(), "tokens": 3, "rounds": 2, "accepted": 1}


def rows(path, n, *, bad=()):
    lines = ["{broken" if i in bad else json.dumps({"id": i, "text": f"text {i}"}) for i in range(n)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return Source(path, "jsonl")


def work(source, output, *, answer=capitals, **options):
    job = Job(source, output, about=options.pop("about", {"task": "proofread"}), **options)
    job.run(answer)
    return job.finish()


@pytest.fixture
def source(tmp_path):
    return rows(tmp_path / "in.jsonl", 9, bad=(6,))


@pytest.fixture
def output(tmp_path):
    return tmp_path / "out.jsonl"


def test_rows_come_out_in_their_order_and_are_counted(source, output):
    def backwards(texts):
        yield from reversed(list(capitals(texts)))

    seen = []
    job = Job(source, output, about={})
    job.run(backwards, seen=seen.append)
    assert not output.exists()
    summary = job.finish()
    values = [json.loads(line) for line in output.read_text().splitlines()]
    assert [value.get("id") for value in values] == [0, 1, 2, 3, 4, 5, None, 7, 8]
    assert values[6]["input"] == "{broken"
    assert (summary.rows, summary.failed, summary.tokens, summary.additional_per_pass) == (9, 1, 24, 0.5)
    assert "line 7" in summary.failures[0]
    assert len(seen) == 9
    assert sorted(path.name for path in output.parent.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_an_empty_line_of_plain_text_is_an_empty_line_and_no_failure(tmp_path):
    path, asked = tmp_path / "in.txt", []
    path.write_text("one\n\n  \ntwo\n")

    def answer(texts):
        for number, text in texts:
            asked.append(text)
            yield from capitals([(number, text)])

    summary = work(Source(path, "text"), tmp_path / "out.txt", answer=answer)
    assert (tmp_path / "out.txt").read_text() == "ONE\n\n\nTWO\n"
    assert (asked, summary.rows, summary.failed) == (["one", "two"], 4, 0)


@pytest.mark.parametrize(
    ("name", "data"),
    [("in.jsonl", '{"text": "a"}\n{"text": "b", "result": "mine"}\n'), ("in.csv", "text,result\na,mine\n")],
)
@pytest.mark.parametrize("piped", [False, True])
def test_a_row_that_has_the_results_field_is_refused_before_any_work(tmp_path, output, name, data, piped):
    path = tmp_path / name
    path.write_text(data)
    with pytest.raises(BatchError, match="'result' already") as error, owned(output), path.open("rb") as stream:
        format = name.partition(".")[2]
        given = Source(spool(stream, output), format, name="standard input") if piped else Source(path, format)
        work(given, output, answer=lambda texts: pytest.fail("begun"))
    assert str(error.value).startswith("standard input" if piped else str(path))
    assert [path.name for path in tmp_path.iterdir()] == [name]  # nothing is left behind


def test_no_rows_are_an_empty_output(tmp_path, output):
    assert work(rows(tmp_path / "in.jsonl", 0), output).rows == 0
    assert output.read_bytes() == b""


def test_it_stops_between_rows_and_goes_on(source, output):
    finished = []
    stop = lambda: len(finished) >= 3  # noqa: E731
    job = Job(source, output, about={}, stopping=stop)
    job.run(capitals, seen=finished.append)
    assert job.finish() is None
    assert (len(finished), job.journal.done) == (3, 3)
    assert not output.exists()

    asked = []

    def rest(texts):
        for number, text in texts:
            asked.append(number)
            yield from capitals([(number, text)])

    assert work(source, output, answer=rest, about={}).rows == 9
    assert asked == [3, 4, 5, 7, 8]


@pytest.mark.parametrize("changed", ["task", "input", "rows", "more"])
def test_a_changed_job_is_refused_in_a_line(tmp_path, source, output, changed):
    Job(source, output, about={"task": "proofread"}).journal.close()
    about = {"task": "proofread"}
    if changed == "task":
        about = {"task": "summarize"}
    elif changed == "input":
        source.path.write_text(source.path.read_text().replace("text 3", "text 4"))
    elif changed == "rows":
        rows(source.path, 10, bad=(6,))
    else:
        about["width"] = 8
    with pytest.raises(BatchError, match="begun with another") as error:
        Job(source, output, about=about)
    assert "\n" not in str(error.value)
    assert "remove" in str(error.value)


def test_it_overwrites_nothing(source, output):
    output.write_text("mine")
    with pytest.raises(BatchError, match="exists"):
        Job(source, output, about={})
    output.unlink()
    output.symlink_to("nowhere")
    with pytest.raises(BatchError, match="exists"):
        Job(source, output, about={})
    output.unlink()

    job = Job(source, output, about={})
    job.run(capitals)
    output.write_text("mine")  # while it was at work
    with pytest.raises(BatchError, match="exists"):
        job.finish()
    assert output.read_text() == "mine"
    output.unlink()
    assert work(source, output, about={}).rows == 9

    other = output.with_name("other.jsonl")
    folder = claim(other)
    folder.mkdir()
    (folder / "mine").write_text("mine")
    with pytest.raises(BatchError, match="mine"):
        Job(source, other, about={})
    with pytest.raises(BatchError, match="folder"):
        Job(source, output.parent / "missing" / "out.jsonl", about={})


def test_an_input_that_changes_while_it_is_read_is_noticed(source, output):
    job = Job(source, output, about={})
    job.run(capitals)
    source.path.write_text(source.path.read_text().replace("text 3", "text 4"))
    with pytest.raises(BatchError, match="line 4"):
        job.finish()
    assert not output.exists()


def test_a_stream_is_kept_and_must_be_the_same(tmp_path, source, output):
    with source.path.open("rb") as stream:
        kept = Source(spool(stream, output), "jsonl")
    Job(kept, output, about={}, stopping=lambda: True).journal.close()
    with source.path.open("rb") as stream:
        spool(stream, output)
    with Path(os.devnull).open("rb") as stream, pytest.raises(BatchError, match="standard input"):
        spool(stream, output)
    assert work(kept, output, about={}).rows == 9


def test_what_was_cut_short_after_the_end_is_only_cleared_up(source, output, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            work(source, output, about={})
    whole = output.read_bytes()
    assert claim(output).is_dir()
    summary = work(source, output, answer=lambda texts: [], about={})
    assert (summary.rows, summary.failed) == (9, 1)
    assert output.read_bytes() == whole
    assert not claim(output.with_name("else")).exists()


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("calls", range(8))
def test_what_is_left_of_a_finished_job_stops_no_other(tmp_path, source, output, monkeypatch, calls, moved):
    """The clearing up is cut short after so many steps; whatever stands there, the next run is free to begin."""
    left = calls

    def until_cut(remove):
        def step(*args, **kwargs):
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            return remove(*args, **kwargs)

        return step

    with source.path.open("rb") as stream:
        kept = Source(spool(stream, output), "jsonl")
    job = Job(kept, output, about={})
    job.run(capitals)
    with monkeypatch.context() as patch:
        rename = Path.rename

        def renamed(path, to):
            rename(path, to)
            for name in ("unlink", "rmdir"):
                patch.setattr(Path, name, until_cut(getattr(Path, name)))

        patch.setattr(Path, "rename", renamed)
        with pytest.raises(KeyboardInterrupt) if calls < 7 else nullcontext():
            job.finish()
    whole = output.read_bytes()
    if moved:
        output.rename(tmp_path / "moved.jsonl")
        with owned(output), source.path.open("rb") as stream:
            assert work(Source(spool(stream, output), "jsonl"), output, about={"task": "another"}).rows == 9
    else:
        with pytest.raises(BatchError, match="exists"), owned(output):
            pass
    assert output.read_bytes() == whole
    assert {path.name for path in tmp_path.iterdir()} - {"moved.jsonl"} == {"in.jsonl", "out.jsonl"}


@pytest.mark.parametrize("kind", ["file", "empty", "full"])
def test_what_is_beside_an_output_is_let_be(source, output, kind):
    beside = output.with_name(f"{output.name}.done")
    if kind == "file":
        beside.write_text("mine")
    else:
        beside.mkdir()
        if kind == "full":
            (beside / "mine").write_text("mine")
    with owned(output):
        job = Job(source, output, about={})
        (claim(output) / "mine").write_text("mine")
        job.run(capitals)
        assert job.finish().rows == 9
    assert beside.exists()
    assert kind != "full" or (beside / "mine").exists()
    assert [path.name for path in claim(output.with_name("else")).parent.glob("*.partial/*")] == ["mine"]


@pytest.mark.parametrize("to", ["folder", "nowhere"])
def test_a_link_in_place_of_the_folder_is_refused_before_any_work(tmp_path, source, output, to):
    (tmp_path / "folder").mkdir()
    claim(output).symlink_to(tmp_path / to)
    for begin in (lambda: owned(output).__enter__(), lambda: Job(source, output, about={})):
        with pytest.raises(BatchError, match="symbolic link") as error:
            begin()
        assert "\n" not in str(error.value)
    assert output.with_name(f"{output.name}.partial").is_symlink()
    assert not any((tmp_path / "folder").iterdir())


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


def test_what_was_measured_is_kept_and_not_compared(source, output):
    Job(source, output, about={}, measure=lambda: {"seconds": 1.5}).journal.close()
    job = Job(source, output, about={}, measure=lambda: pytest.fail("measured again"))
    assert job.measured == {"seconds": 1.5}
    job.run(capitals)
    assert job.finish().rows == 9


def test_two_runs_at_once_are_refused_before_anything_is_begun(source, output):
    with owned(output):
        with pytest.raises(BatchError, match="another run"), owned(output):
            pass
        with owned(output, rank=1):  # another process of the same run
            work(source, output, about={})
    assert not claim(output.with_name("else")).exists()


def test_a_folder_where_nothing_was_begun_is_not_left_behind(output):
    with pytest.raises(KeyError), owned(output):
        raise KeyError
    assert not claim(output).exists()


def start(source, output, **options):
    code = [sys.executable, "-c", WORK, str(source.path), str(output), "2000"]
    return subprocess.Popen(code, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options)


def kill_until_done(source, output, expected, kills, *, random):
    """Runs that are killed at random moments, and one that is not; one that ends before its kill is begun anew."""
    died = 0
    folder = claim(output)
    while died < kills or not output.exists() or folder.exists():
        if output.exists() and not folder.exists():
            assert output.read_bytes() == expected
            output.unlink()
        run = start(source, output)
        if died < kills:
            until(folder.exists, run)
            ended(run, within=random.expovariate(1 / 0.02))
            run.send_signal(signal.SIGKILL)
        died += run.wait() == -signal.SIGKILL
        run.stderr.close()


@pytest.mark.parametrize(
    ("n", "kills"), [(300, 10), pytest.param(3000, 300, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_killed_at_random_moments_nothing_is_lost_or_doubled(tmp_path, output, n, kills):
    source = rows(tmp_path / "in.jsonl", n, bad=(6, 7, n - 1))
    made = tmp_path / "expected.jsonl"
    assert start(source, made).wait() == 0
    expected = made.read_bytes()
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    kill_until_done(source, output, expected, kills, random=random.Random(seed))
    assert output.read_bytes() == expected
    assert len(output.read_text().splitlines()) == n


def test_a_full_disk_keeps_every_row_that_was_written(tmp_path, output):
    """A limit on the size of files stands for the disk; it is raised until the output fits."""
    source = rows(tmp_path / "in.jsonl", 60)
    expected = tmp_path / "expected.jsonl"
    assert start(source, expected).wait() == 0
    full = start(source, output, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50)))
    assert "make room and run the same command again" in full.communicate()[1].splitlines()[-1]
    kept, full = 0, 0
    for limit in (700, 1500, 2900, 4100, 20_000):
        run = start(source, output, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))  # noqa: B023
        _, err = run.communicate()
        if run.returncode == 0:
            break
        full += 1
        assert "BatchError" in err.splitlines()[-1]
        assert "make room and run the same command again" in err.splitlines()[-1]
        assert not output.exists()
        lines = (claim(output) / "rows-0.jsonl").read_bytes().count(b"\n")
        assert lines >= kept
        kept = lines
    assert full >= 3
    assert kept == 60 or kept > 20
    assert output.read_bytes() == expected.read_bytes()


# Bytes. On Linux, what getrusage says counts the process that started this one, too.
PEAK = """
job.finish()
if sys.platform == "linux":
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    print(int(status["VmHWM"].split()[0]) * 1024)
else:
    import resource
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_a_million_rows_take_little_memory(tmp_path, output):
    path = tmp_path / "in.jsonl"
    with path.open("w") as file:
        file.writelines(f'{{"id": {i}, "text": "message {i}"}}\n' for i in range(1_000_000))
    code = WORK.replace("sys.exit(0 if job.finish() else 3)", PEAK)
    run = subprocess.run([sys.executable, "-c", code, path, output, "1"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 150e6
    with output.open() as lines:
        assert sum(1 for _ in lines) == 1_000_000
    shutil.rmtree(tmp_path)
