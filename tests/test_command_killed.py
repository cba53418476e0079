"""``mtp-mlx batch`` as processes: stopped, killed, gone on with, several at once, and what memory they take."""

import json
import multiprocessing
import multiprocessing.forkserver
import os
import random
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from ending import ended, until
from messages import read, rows, words

from mtp_mlx.cli import main

ROOT = Path(__file__).resolve().parent.parent
UNIT = 1 if sys.platform == "darwin" else 1024  # bytes that ru_maxrss counts in


@pytest.fixture(scope="module")
def processes():
    """Of a server that imports once, then forks before anything is computed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["conftest"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)  # Python 3.11's looks nowhere else
        multiprocessing.forkserver.ensure_running()
    return context


def wait_for_rows(process, output):
    """Until a row is recorded, or the run has ended."""
    journal = output.with_name(f"{output.name}.partial") / "rows-0.jsonl"
    size = journal.stat().st_size if journal.exists() else 0
    until(lambda: journal.exists() and journal.stat().st_size > size, process)


def test_the_first_interrupt_finishes_the_row_in_hand(tiny, tmp_path):
    source, output = rows(tmp_path / "in.jsonl", 400), tmp_path / "out.jsonl"
    code = [sys.executable, "-m", "mtp_mlx", *words(tiny, source, output)]
    process = subprocess.Popen(code, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_for_rows(process, output)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert "run the same command again to go on" in err.splitlines()[-1]
    journal = (tmp_path / "out.jsonl.partial" / "rows-0.jsonl").read_bytes()
    assert journal.endswith(b"\n")
    lines = journal.count(b"\n")
    assert f"{lines} of 400 rows" in err
    assert not output.exists()


SHIPPED = ["batch", "proofread", "--max-tokens", "6", "--width", "3", "--draft-length", "2", "--batch", "3"]


def slow(*values, name):
    return pytest.param(*values, marks=pytest.mark.slow, id=name)


@pytest.mark.parametrize(
    ("n", "kills", "at_once"),
    [
        pytest.param(20, 2, "1", id="few"),
        slow(800, 200, "1", name="many"),
        slow(900, 100, "3", name="several at once"),
    ],
)
def test_killed_at_random_moments_nothing_is_lost_or_doubled(tiny, batch, processes, tmp_path, n, kills, at_once):
    """A kill falls before the model is loaded, while rows are worked on, or as the output is put together."""
    source, output, expected = rows(tmp_path / "in.jsonl", n), tmp_path / "out.jsonl", tmp_path / "expected.jsonl"
    assert batch(source, expected, "--no-timings", "--batch", at_once)[0] == 0
    command = [*words(tiny, source, output), "--batch", at_once]
    again_and_again(processes, command, output, expected.read_bytes(), kills, pause=0.1)
    assert output.read_bytes() == expected.read_bytes()
    assert [value["id"] for value in read(output)] == list(range(n))
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", "out.jsonl", "expected.jsonl"}


@pytest.mark.slow
def test_the_shipped_model_is_killed_and_nothing_is_lost_or_doubled(processes, tmp_path):
    """Three texts at once, each drafting for itself, and other neighbours after every kill."""
    source, output, expected = rows(tmp_path / "in.jsonl", 60), tmp_path / "out.jsonl", tmp_path / "expected.jsonl"
    assert main([*SHIPPED, str(source), str(expected), "--no-timings"]) == 0
    command = [*SHIPPED, str(source), str(output), "--no-timings"]
    again_and_again(processes, command, output, expected.read_bytes(), 24, pause=1)
    assert output.read_bytes() == expected.read_bytes()
    assert [value["id"] for value in read(output)] == list(range(60))


def again_and_again(processes, words, output, expected, kills, *, pause):
    """Run a command until it was killed so often and only its output is there: most kills come after a row is recorded.

    A run that ends before its kill comes has to be right as well, and is begun anew.
    """
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    draw = random.Random(seed)
    died = 0
    folder = output.with_name(f"{output.name}.partial")
    while died < kills or not output.exists() or folder.exists():
        if output.exists() and not folder.exists():
            assert output.read_bytes() == expected
            output.unlink()
        process = processes.Process(target=main, args=([*words, "--quiet"],))
        process.start()
        if kill := died < kills:
            if draw.random() < 0.9:
                wait_for_rows(process, output)
            ended(process, within=draw.expovariate(1 / pause))  # the moment is the point: anything may be going on
            process.kill()
        process.join()
        died += process.exitcode == -signal.SIGKILL
        assert kill or output.exists(), process.exitcode


def peak(words, told):
    """Run the command; put its exit code, and the most memory that the process took, in bytes."""
    told.put((main(words), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(tiny, processes, tmp_path):
    """100,000 were watched once, over a model of one layer: 152 MB from the first minute to the last."""
    peaks = []
    for n in (1000, 20_000):
        told = processes.Queue()
        source, output = rows(tmp_path / f"{n}.jsonl", n), tmp_path / f"out-{n}.jsonl"
        shape = ("--batch", "16", "--drafter", "plain", "--draft-length", "0", "--width", "1", "--max-tokens", "1")
        process = processes.Process(target=peak, args=([*words(tiny, source, output), *shape, "--quiet"], told))
        process.start()
        code, most = told.get()
        process.join()
        assert code == 0
        with output.open() as lines:
            assert sum(1 for _ in lines) == n
        peaks.append(most)
    assert peaks[1] < peaks[0] + 50e6
    assert peaks[1] + 20 * 1_000_000 < 1.5e9  # 12 bytes a row are kept


@pytest.mark.slow
def test_several_processes_make_one_output(tiny, batch, tmp_path):
    """Two as MLX's launcher starts them, of which one dies; then three, then the launcher says what is refused."""
    source, output, expected = rows(tmp_path / "in.jsonl", 40), tmp_path / "out.jsonl", tmp_path / "expected.jsonl"
    assert batch(source, expected, "--no-timings")[0] == 0
    hosts = tmp_path / "hosts.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{free_port()}"] for _ in range(2)]))
    code = [sys.executable, "-m", "mtp_mlx", *words(tiny, source, output)]
    ranks = [
        subprocess.Popen(code, cwd=ROOT, env=os.environ | {"MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts)})
        for rank in range(2)
    ]
    journals = [tmp_path / "out.jsonl.partial" / f"rows-{rank}.jsonl" for rank in range(2)]
    until(lambda: all(j.exists() and j.stat().st_size for j in journals), ranks[0])
    assert ranks[0].poll() is None
    ranks[1].kill()
    size = journals[0].stat().st_size
    until(lambda: journals[0].stat().st_size > size, ranks[0])  # the other goes on
    ranks[0].kill()  # as the launcher does
    for rank in ranks:
        rank.wait()
    assert not output.exists()
    before = [read(journal)[:1] for journal in journals]
    assert {entry["row"] for (entry,) in before} == {0, 1}

    launch = [str(Path(sys.executable).with_name("mlx.launch")), "-n", "3", "--", *code]
    launched = subprocess.run(launch, cwd=ROOT, capture_output=True, text=True)
    assert launched.returncode == 0, launched.stderr
    assert output.read_bytes() == expected.read_bytes()
    again = subprocess.run(launch, cwd=ROOT, capture_output=True, text=True)
    assert "exists already" in again.stdout + again.stderr
    assert output.read_bytes() == expected.read_bytes()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
