"""``mtp-mlx batch`` as a person runs it: over the tiny model, stopped, killed, and gone on with."""

import gzip
import io
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
from types import SimpleNamespace

import pytest
from ending import ended, until

from mtp_mlx.batch.pace import Pace
from mtp_mlx.cli import main
from mtp_mlx.pipeline import Pipeline
from mtp_mlx.request import Request

ROOT = Path(__file__).resolve().parent.parent
UNIT = 1 if sys.platform == "darwin" else 1024  # bytes that ru_maxrss counts in
QUICK = ("--drafter", "lookup", "--max-tokens", "4", "--width", "2", "--draft-length", "1")


@pytest.fixture
def run(tiny, monkeypatch, capfd):
    """Run the command over the tiny model, which is loaded once: (exit code, standard error)."""
    monkeypatch.setattr("mtp_mlx.pipeline.load", lambda *_, **__: Pipeline(tiny))

    def call(input, output, *words, task="proofread"):
        code = main(["batch", task, str(input), str(output), "--backbone", str(tiny.path), *QUICK, *words])
        return code, capfd.readouterr().err

    return call


@pytest.fixture(scope="module")
def processes():
    """Of a server that imports once, then forks before anything is computed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["conftest"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)  # Python 3.11's looks nowhere else
        multiprocessing.forkserver.ensure_running()
    return context


@pytest.fixture
def source(tmp_path):
    return rows(tmp_path / "in.jsonl", 3)


def rows(path, n):
    path.write_text("".join(json.dumps({"id": i, "text": f"hello wrld {i}"}) + "\n" for i in range(n)))
    return path


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_row_gets_its_answer(run, tmp_path, source):
    code, err = run(source, tmp_path / "out.jsonl")
    values = read(tmp_path / "out.jsonl")
    assert code == 0
    assert [value["id"] for value in values] == [0, 1, 2]
    assert all(value["result"]["tokens"] == 4 and value["result"]["seconds"] > 0 for value in values)
    assert "3 rows" in err
    assert "12 tokens" in err


def test_the_exit_code_says_that_a_row_failed(run, tmp_path, source):
    with source.open("a") as file:
        file.write("{broken\n")
    code, err = run(source, tmp_path / "out.jsonl.gz")
    assert code == 1
    assert "line 4" in err
    with gzip.open(tmp_path / "out.jsonl.gz", "rt") as file:
        assert ["error" in json.loads(line)["result"] for line in file] == [False, False, False, True]


def test_standard_input_is_plain_text(run, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"hello wrld\na b c")))
    assert run("-", tmp_path / "out.csv")[0] == 0
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0].startswith("text,result.text,")
    assert [line.split(",")[0] for line in lines[1:]] == ["hello wrld", "a b c"]


def test_what_cannot_be_read_or_written_is_told_before_any_work(run, tmp_path, source, monkeypatch):
    monkeypatch.setattr(
        "mtp_mlx.batch.streams.importlib.import_module", lambda name: (_ for _ in ()).throw(ImportError)
    )
    code, err = run(source, tmp_path / "out.jsonl.zst")
    assert (code, "pip install" in err) == (1, True)
    monkeypatch.setattr(sys, "stdin", None)
    assert run("-", tmp_path / "out.jsonl")[0] == 1
    assert run(source, tmp_path / "out.jsonl", "--drafter", "standalone", "--batch", "2")[0] == 1
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl"}


def test_quiet_is_quiet_and_a_log_is_json(run, tmp_path, source):
    assert run(source, tmp_path / "a.jsonl", "--quiet") == (0, "")
    _, err = run(source, tmp_path / "b.jsonl", "--json-log")
    assert json.loads(err.splitlines()[-1])["tokens"] == 12


def test_failures_are_told_in_a_line_however_quiet_it_is(run, tmp_path, source):
    with source.open("a") as file:
        file.write('{"text": ""}\n{broken\n')
    code, err = run(source, tmp_path / "a.jsonl", "--quiet")
    assert code == 1
    assert err == "mtp-mlx: 2 of 5 rows failed, the first one in line 4: the text is empty: write something first\n"
    code, err = run(source, tmp_path / "b.jsonl", "--quiet", "--json-log")
    assert (code, json.loads(err)["failed"]) == (1, 2)


def test_paragraphs_of_plain_text_stay_apart_and_are_no_failures(run, tmp_path, monkeypatch):
    (tmp_path / "in.txt").write_text("hello wrld\n\na b c\n")
    for words in ((), ("--batch", "2")):
        output = tmp_path / f"out{len(words)}.txt"
        assert run(tmp_path / "in.txt", output, "--quiet", *words) == (0, "")
        assert [bool(line) for line in output.read_text().splitlines()] == [True, False, True]
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"\n")))
    assert run("-", tmp_path / "out.jsonl", "--quiet") == (0, "")
    assert read(tmp_path / "out.jsonl")[0]["result"]["tokens"] == 0


@pytest.mark.parametrize(
    "words",
    [
        ("--width", "3"),
        ("--draft-length", "auto"),
        ("--max-tokens", "5"),
        ("--drafter", "plain"),
        ("--no-timings",),
        ("--field", "id"),
    ],
)
def test_other_options_are_refused(run, tmp_path, source, monkeypatch, words):
    output = tmp_path / "out.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr("mtp_mlx.batch.files.Job.run", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        assert run(source, output)[0] == 130
    code, err = run(source, output, *words)
    assert code == 1
    assert "begun with another" in err
    assert len(err.strip().splitlines()) == 1
    assert run(source, output)[0] == 0


def test_a_run_of_another_version_is_not_gone_on_with(run, tmp_path, source, monkeypatch):
    output = tmp_path / "out.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr("mtp_mlx.batch.command.__version__", "0.0.1")
        patch.setattr("mtp_mlx.batch.files.Job.run", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        assert run(source, output)[0] == 130
    code, err = run(source, output)
    assert code == 1
    assert "mtp_mlx" in err
    assert "0.0.1" in err


def test_what_cannot_be_is_refused_in_a_line(run, tmp_path, source):
    (tmp_path / "there.jsonl").write_text("mine")
    for input, output in [
        (tmp_path / "missing.jsonl", tmp_path / "out.jsonl"),
        (source, tmp_path / "there.jsonl"),
        (source, tmp_path / "missing" / "out.jsonl"),
        (source, tmp_path / "out.csv"),
        (tmp_path, tmp_path / "out.jsonl"),
        (source, "-"),
        (source, "."),
    ]:
        code, err = run(input, output)
        assert (code, len(err.strip().splitlines())) == (1, 1)
    assert (tmp_path / "there.jsonl").read_text() == "mine"


def test_a_pipe_as_input_is_refused_before_any_work(run, tmp_path, monkeypatch):
    monkeypatch.setattr("mtp_mlx.pipeline.load", lambda *_, **__: pytest.fail("loaded"))
    os.mkfifo(tmp_path / "named.jsonl")
    reader, writer = os.pipe()  # as the shell's <(...) gives it
    try:
        for input in (tmp_path / "named.jsonl", f"/dev/fd/{reader}"):
            code, err = run(input, tmp_path / "out.jsonl")
            assert (code, len(err.strip().splitlines())) == (1, 1)
            assert "give -" in err
    finally:
        os.close(reader)
        os.close(writer)
    assert {path.name for path in tmp_path.iterdir()} == {"named.jsonl"}


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("--field", b"na\xffme"),
        *(("--into", name) for name in (b"na\xffme", b"", b" ", b"a\nb")),
    ],
)
def test_a_name_that_cannot_be_is_refused_as_an_argument(run, tmp_path, source, capfd, option, name):
    with pytest.raises(SystemExit) as refused:
        run(source, tmp_path / "out.jsonl", option, os.fsdecode(name))
    assert refused.value.code == 2
    assert option in capfd.readouterr().err.splitlines()[-1]
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl"}


def test_the_width_is_chosen_again_and_a_resumed_run_chooses_the_same(run, tmp_path, monkeypatch):
    """Drafts that are promised to be right, and are not, are given up after some rows; what was measured is kept."""
    source, outputs = rows(tmp_path / "in.jsonl", 40), [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    options = ("--batch", "2", "--draft-length", "auto", "--no-timings")
    monkeypatch.setattr("mtp_mlx.cli.Request", lambda **given: Request(**given | {"width": None}))
    monkeypatch.setattr("mtp_mlx.batch.command.measure", lambda *_, **__: Pace({1: 1.0, 4: 1.5}, 0.0, (0.9,) * 7))
    code, err = run(source, outputs[0], *options)
    assert code == 0
    chosen = [line for line in err.splitlines() if "at once" in line]
    assert ["4 rows" in line for line in chosen] == [True, False]
    assert "1 row" in chosen[1]
    for stopped_at in (7, 30):
        seen = []

        def add(self, result, stopped_at=stopped_at, seen=seen):
            seen.append(result)
            if len(seen) == stopped_at:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("mtp_mlx.batch.progress.Progress.add", add)
            assert run(source, outputs[1], *options)[0] == 130
        monkeypatch.setattr("mtp_mlx.batch.command.measure", lambda *_, **__: Pace({1: 1.0, 2: 0.1}, 0.0, (0.9,) * 7))
    assert run(source, outputs[1], *options)[0] == 0
    assert outputs[1].read_bytes() == outputs[0].read_bytes()


def words(tiny, source, output):
    return ["batch", "proofread", str(source), str(output), "--backbone", str(tiny.path), *QUICK, "--no-timings"]


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


def test_an_interrupt_before_any_row_is_in_hand_stops_at_once_and_leaves_nothing(run, tmp_path, source, monkeypatch):
    monkeypatch.setattr("mtp_mlx.batch.command.measure", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    before = signal.getsignal(signal.SIGINT)
    assert run(source, tmp_path / "out.jsonl", "--draft-length", "auto") == (130, "mtp-mlx: stopped\n")
    assert signal.getsignal(signal.SIGINT) is before
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl"}


SHIPPED = ["batch", "proofread", "--max-tokens", "6", "--width", "3", "--draft-length", "2", "--batch", "3"]


def slow(*values, name):
    return pytest.param(*values, marks=pytest.mark.slow, id=name)


@pytest.mark.parametrize(
    ("n", "kills", "batch"),
    [
        pytest.param(20, 2, "1", id="few"),
        slow(800, 200, "1", name="many"),
        slow(900, 100, "3", name="several at once"),
    ],
)
def test_killed_at_random_moments_nothing_is_lost_or_doubled(tiny, run, processes, tmp_path, n, kills, batch):
    """A kill falls before the model is loaded, while rows are worked on, or as the output is put together."""
    source, output, expected = rows(tmp_path / "in.jsonl", n), tmp_path / "out.jsonl", tmp_path / "expected.jsonl"
    assert run(source, expected, "--no-timings", "--batch", batch)[0] == 0
    command = [*words(tiny, source, output), "--batch", batch]
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
def test_several_processes_make_one_output(tiny, run, tmp_path):
    """Two as MLX's launcher starts them, of which one dies; then three, then the launcher says what is refused."""
    source, output, expected = rows(tmp_path / "in.jsonl", 40), tmp_path / "out.jsonl", tmp_path / "expected.jsonl"
    assert run(source, expected, "--no-timings")[0] == 0
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
