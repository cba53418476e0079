"""The command line: the whole trace as JSON, one clear line for every error, and a non-zero exit."""

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import one_line

from mtp_mlx.cli import main
from mtp_mlx.drafters.base import Drafter

ROOT = Path(__file__).resolve().parent.parent


def test_run_writes_the_text_and_the_numbers_apart(run):
    code, out, err = run("run", "proofread", "hello wrld", "--drafter", "plain", "--max-tokens", "6")
    assert code == 0
    assert out.strip()
    assert "6 tokens in 5 passes after the prompt's" in err
    _, _, err = run("run", "proofread", "hello wrld", "--drafter", "plain", "--max-tokens", "2")
    assert "2 tokens in 1 pass after the prompt's" in err
    _, _, err = run("run", "proofread", "hello wrld", "--drafter", "plain", "--max-tokens", "1")
    assert "1 token in 0 passes after the prompt's" in err


def test_where_no_drafts_pay_it_says_so(run, monkeypatch):
    monkeypatch.setattr("mtp_mlx.pipeline.Pipeline.paced", lambda self, drafter, task, *, width: (Drafter(), 1))
    words = ("run", "proofread", "hello wrld", "--drafter", "lookup", "--max-tokens", "3")
    assert "nothing drafted" in run(*words)[2]
    for options in (("--draft-length", "2"), ("--width", "1"), ("--drafter", "plain")):
        assert "nothing drafted" not in run(*words, *options)[2]


def test_a_text_in_which_nothing_is_found_to_copy_is_not_called_one_where_it_would_not_pay(run, monkeypatch):
    monkeypatch.setattr("mtp_mlx.pipeline.Pipeline.paced", lambda self, drafter, task, *, width: (Drafter(), 8))
    assert "nothing drafted" not in run("run", "proofread", "hello", "--drafter", "lookup", "--max-tokens", "3")[2]


def test_json_is_the_whole_trace(run):
    words = ("--drafter", "lookup", "--width", "5", "--max-tokens", "24", "--json")
    code, out, _ = run("run", "summarize", "Mom: hi\nMom: call me", *words)
    trace = json.loads(out)
    assert code == 0
    assert {"task": "summarize", "drafter": "lookup", "width": 5}.items() <= trace.items()
    assert trace["prompt_tokens"] > 10
    assert len(trace["token_ids"]) == trace["stats"]["tokens"] == 24
    ids = []
    for r in trace["rounds"]:
        assert {"drafted", "accepted", "token", "kind", "margin", "draft_seconds", "verify_seconds"} <= r.keys()
        assert all(token.keys() == {"id", "text", "probability", "top", "attention"} for token in r["drafted"])
        assert len(r["rows"]) == len(r["drafted"]) + 1
        ids += [token["id"] for token in r["drafted"][: r["accepted"]]]
        ids += [r["token"]["id"]] if r["token"] else []
    assert ids == trace["token_ids"]
    stats = trace["stats"]
    assert [r["kind"] == "first" for r in trace["rounds"]] == [True] + [False] * stats["rounds"]
    assert stats["additional_per_pass"] == pytest.approx(stats["accepted"] / stats["rounds"])
    assert {"drafted", "acceptance_rate", "per_position", "seconds", "prefill_seconds"} <= stats.keys()


def test_every_drafter_writes_the_same_ids(run):
    texts = set()
    for name in ("plain", "lookup"):
        code, out, _ = run("run", "proofread", "a b c", "--drafter", name, "--max-tokens", "16", "--json")
        texts.add(tuple(json.loads(out)["token_ids"]))
        assert code == 0
    assert len(texts) == 1


def test_trace_shows_a_line_a_round(run, monkeypatch):
    words = ("run", "proofread", "a b c", "--drafter", "lookup", "--draft-length", "4", "--max-tokens", "16", "--trace")
    _, plain, err = run(*words)
    lines = [line for line in err.splitlines() if "/" in line.split(" ")[0]]
    assert len(lines) == 1 + int(err.split(" tokens in ")[1].split(" ")[0])  # the first token's, too
    assert any("✗" in line for line in lines)
    assert all("↻" in line or "+" in line for line in lines if not line.startswith("0/0"))
    assert "\x1b" not in err  # no terminal, no colours
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    _, coloured, err = run(*words)
    assert err.count("\x1b[") >= 4
    assert coloured == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in run(*words)[2]


def test_a_profile_says_what_is_taken_of_it(run):
    words = ("run", "proofread", "hello wrld", "--drafter", "plain", "--max-tokens", "3")
    assert "1.60 GiB of Pixel 8" in run(*words, "--profile", "pixel-8")[2]
    assert "taken" not in run(*words)[2]


def test_an_answer_that_was_cut_says_so(run):
    _, _, err = run("run", "proofread", "hello wrld", "--drafter", "plain", "--max-tokens", "3")
    assert "stopped at 3 tokens" in err
    assert "stopped at 1 token," in run("run", "proofread", "hello wrld", "--drafter", "plain", "--max-tokens", "1")[2]
    assert "of drafts" not in err  # plain decode has none


@pytest.mark.parametrize(
    "data",
    [b"\xff\xfe\x00", b"caf\xe9", b"", b"   \n", b"x " * 25_000],
    ids=["utf-16", "latin-1", "none", "blank", "long"],
)
def test_bad_standard_input_is_refused_in_a_line(run, monkeypatch, data):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    code, out, err = run("run", "proofread", "--drafter", "plain")
    assert (code, out) == (1, "")
    assert one_line(err)


@pytest.mark.parametrize("given", [(), ("-",)], ids=["nothing", "dash"])
def test_odd_standard_input_is_worked_on(run, monkeypatch, given):
    text = "\ufeffa\0b <|im_end|> ${1+1} 🎉 안녕 שלום"
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
    code, out, _ = run("run", "proofread", *given, "--drafter", "lookup", "--max-tokens", "4", "--json")
    assert code == 0
    assert "안녕 שלום" in json.loads(out)["input"]


def test_a_budget_of_one_token(run):
    code, out, _ = run("run", "proofread", "hi", "--drafter", "lookup", "--max-tokens", "1", "--json")
    assert code == 0
    assert len(json.loads(out)["token_ids"]) == 1


@pytest.mark.parametrize("damage", ["missing", "cut", "wrong checksum"])
def test_damaged_weights_are_refused_in_a_line(tiny, tmp_path, capfd, damage):
    folder = tmp_path / "model"
    if damage != "missing":
        shutil.copytree(tiny.path, folder)
        data = bytearray((folder / "model.safetensors").read_bytes())
        if damage == "cut":
            del data[len(data) // 2 :]
        else:
            data[-1] ^= 1
        (folder / "model.safetensors").write_bytes(data)
    code = main(["run", "proofread", "hi", "--drafter", "plain", "--backbone", str(folder)])
    out, err = capfd.readouterr()
    assert (code, out) == (1, "")
    assert one_line(err)
    assert main(["doctor", "--backbone", str(folder)]) == 1
    assert "BAD" in capfd.readouterr().out


def test_a_missing_head_is_refused_with_the_cure(run, tmp_path):
    code, _, err = run("run", "proofread", "hi", "--head", str(tmp_path / "none"))
    assert code == 1
    assert one_line(err)
    assert "mtp-mlx train" in err


def test_ctrl_c_while_it_is_imported_is_a_line():
    """The import of the command line is where the signal falls."""
    code = """
import runpy, signal, sys
class Late:
    def find_spec(self, name, path=None, target=None):
        if name == "mtp_mlx.cli":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Late())
runpy.run_module("mtp_mlx", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (130, "mtp-mlx: stopped\n")


def test_a_reader_that_has_enough_is_no_error(tiny):
    options = f"--backbone {tiny.path} --drafter plain --max-tokens 4 --json"
    command = f"{sys.executable} -m mtp_mlx run proofread hi {options} | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT)
    assert done.stderr == ""


@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_a_closed_stream_is_told_in_a_line(tiny, closed):
    text = "" if closed == "<&-" else "hi"
    options = f"--backbone {tiny.path} --drafter plain --max-tokens 2"
    command = f"{sys.executable} -m mtp_mlx run proofread {text} {options}"
    done = subprocess.run(["bash", "-c", f"{command} {closed}"], capture_output=True, text=True, cwd=ROOT)
    assert one_line(done.stderr)
    assert done.returncode == 1


def test_convert_refuses_what_is_no_gguf(tmp_path, capfd):
    (tmp_path / "x.gguf").write_bytes(b"nothing")
    assert main(["convert", str(tmp_path / "x.gguf"), str(tmp_path / "new" / "out")]) == 1
    assert one_line(capfd.readouterr().err)
    assert {path.name for path in tmp_path.iterdir()} == {"x.gguf"}  # no folder for nothing
