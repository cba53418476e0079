"""``mtp-mlx batch`` as a person runs it, over the tiny model."""

import gzip
import io
import json
import os
import signal
import sys
from types import SimpleNamespace

import pytest
from messages import read, rows

from mtp_mlx.batch.pace import Pace
from mtp_mlx.request import Request


@pytest.fixture
def source(tmp_path):
    return rows(tmp_path / "in.jsonl", 3)


def test_every_row_gets_its_answer(batch, tmp_path, source):
    code, err = batch(source, tmp_path / "out.jsonl")
    values = read(tmp_path / "out.jsonl")
    assert code == 0
    assert [value["id"] for value in values] == [0, 1, 2]
    assert all(value["result"]["tokens"] == 4 and value["result"]["seconds"] > 0 for value in values)
    assert "3 rows" in err
    assert "12 tokens" in err


def test_the_exit_code_says_that_a_row_failed(batch, tmp_path, source):
    with source.open("a") as file:
        file.write("{broken\n")
    code, err = batch(source, tmp_path / "out.jsonl.gz")
    assert code == 1
    assert "line 4" in err
    with gzip.open(tmp_path / "out.jsonl.gz", "rt") as file:
        assert ["error" in json.loads(line)["result"] for line in file] == [False, False, False, True]


def test_standard_input_is_plain_text(batch, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"hello wrld\na b c")))
    assert batch("-", tmp_path / "out.csv")[0] == 0
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0].startswith("text,result.text,")
    assert [line.split(",")[0] for line in lines[1:]] == ["hello wrld", "a b c"]


def test_what_cannot_be_read_or_written_is_told_before_any_work(batch, tmp_path, source, monkeypatch):
    monkeypatch.setattr(
        "mtp_mlx.batch.streams.importlib.import_module", lambda name: (_ for _ in ()).throw(ImportError)
    )
    code, err = batch(source, tmp_path / "out.jsonl.zst")
    assert (code, "pip install" in err) == (1, True)
    monkeypatch.setattr(sys, "stdin", None)
    assert batch("-", tmp_path / "out.jsonl")[0] == 1
    assert batch(source, tmp_path / "out.jsonl", "--drafter", "standalone", "--batch", "2")[0] == 1
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl"}


def test_quiet_is_quiet_and_a_log_is_json(batch, tmp_path, source):
    assert batch(source, tmp_path / "a.jsonl", "--quiet") == (0, "")
    _, err = batch(source, tmp_path / "b.jsonl", "--json-log")
    assert json.loads(err.splitlines()[-1])["tokens"] == 12


def test_failures_are_told_in_a_line_however_quiet_it_is(batch, tmp_path, source):
    with source.open("a") as file:
        file.write('{"text": ""}\n{broken\n')
    code, err = batch(source, tmp_path / "a.jsonl", "--quiet")
    assert code == 1
    assert err == "mtp-mlx: 2 of 5 rows failed, the first one in line 4: the text is empty: write something first\n"
    code, err = batch(source, tmp_path / "b.jsonl", "--quiet", "--json-log")
    assert (code, json.loads(err)["failed"]) == (1, 2)


def test_paragraphs_of_plain_text_stay_apart_and_are_no_failures(batch, tmp_path, monkeypatch):
    (tmp_path / "in.txt").write_text("hello wrld\n\na b c\n")
    for words in ((), ("--batch", "2")):
        output = tmp_path / f"out{len(words)}.txt"
        assert batch(tmp_path / "in.txt", output, "--quiet", *words) == (0, "")
        assert [bool(line) for line in output.read_text().splitlines()] == [True, False, True]
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"\n")))
    assert batch("-", tmp_path / "out.jsonl", "--quiet") == (0, "")
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
def test_other_options_are_refused(batch, tmp_path, source, monkeypatch, words):
    output = tmp_path / "out.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr("mtp_mlx.batch.files.Job.run", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        assert batch(source, output)[0] == 130
    code, err = batch(source, output, *words)
    assert code == 1
    assert "begun with another" in err
    assert len(err.strip().splitlines()) == 1
    assert batch(source, output)[0] == 0


def test_a_run_of_another_version_is_not_gone_on_with(batch, tmp_path, source, monkeypatch):
    output = tmp_path / "out.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr("mtp_mlx.batch.command.__version__", "0.0.1")
        patch.setattr("mtp_mlx.batch.files.Job.run", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        assert batch(source, output)[0] == 130
    code, err = batch(source, output)
    assert code == 1
    assert "mtp_mlx" in err
    assert "0.0.1" in err


def test_what_cannot_be_is_refused_in_a_line(batch, tmp_path, source):
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
        code, err = batch(input, output)
        assert (code, len(err.strip().splitlines())) == (1, 1)
    assert (tmp_path / "there.jsonl").read_text() == "mine"


def test_a_pipe_as_input_is_refused_before_any_work(batch, tmp_path, monkeypatch):
    monkeypatch.setattr("mtp_mlx.pipeline.load", lambda *_, **__: pytest.fail("loaded"))
    os.mkfifo(tmp_path / "named.jsonl")
    reader, writer = os.pipe()  # as the shell's <(...) gives it
    try:
        for input in (tmp_path / "named.jsonl", f"/dev/fd/{reader}"):
            code, err = batch(input, tmp_path / "out.jsonl")
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
def test_a_name_that_cannot_be_is_refused_as_an_argument(batch, tmp_path, source, capfd, option, name):
    with pytest.raises(SystemExit) as refused:
        batch(source, tmp_path / "out.jsonl", option, os.fsdecode(name))
    assert refused.value.code == 2
    assert option in capfd.readouterr().err.splitlines()[-1]
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl"}


def test_the_width_is_chosen_again_and_a_resumed_run_chooses_the_same(batch, tmp_path, monkeypatch):
    """Drafts that are promised to be right, and are not, are given up after some rows; what was measured is kept."""
    source, outputs = rows(tmp_path / "in.jsonl", 40), [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    options = ("--batch", "2", "--draft-length", "auto", "--no-timings")
    monkeypatch.setattr("mtp_mlx.cli.Request", lambda **given: Request(**given | {"width": None}))
    monkeypatch.setattr("mtp_mlx.batch.command.measure", lambda *_, **__: Pace({1: 1.0, 4: 1.5}, 0.0, (0.9,) * 7))
    code, err = batch(source, outputs[0], *options)
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
            assert batch(source, outputs[1], *options)[0] == 130
        monkeypatch.setattr("mtp_mlx.batch.command.measure", lambda *_, **__: Pace({1: 1.0, 2: 0.1}, 0.0, (0.9,) * 7))
    assert batch(source, outputs[1], *options)[0] == 0
    assert outputs[1].read_bytes() == outputs[0].read_bytes()


def test_an_interrupt_before_any_row_is_in_hand_stops_at_once_and_leaves_nothing(batch, tmp_path, source, monkeypatch):
    monkeypatch.setattr("mtp_mlx.batch.command.measure", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    before = signal.getsignal(signal.SIGINT)
    assert batch(source, tmp_path / "out.jsonl", "--draft-length", "auto") == (130, "mtp-mlx: stopped\n")
    assert signal.getsignal(signal.SIGINT) is before
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl"}
