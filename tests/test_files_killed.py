"""Files in, files out: killed at any moment or out of room, nothing is lost or doubled, and memory stays small."""

import random
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from capitals import rows
from ending import ended, until

from mtp_mlx.batch.files import claim

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
if not done:
    sys.exit(3)
"""


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
    run = subprocess.run(
        [sys.executable, "-c", WORK + PEAK, path, output, "1"], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 150e6
    with output.open() as lines:
        assert sum(1 for _ in lines) == 1_000_000
    shutil.rmtree(tmp_path)
