"""The command line: the whole trace as JSON, one clear line for every error, and a non-zero exit."""

import io
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from mtp_mlx import blas, weights
from mtp_mlx.cli import main
from mtp_mlx.decode import plain
from mtp_mlx.drafters.base import Drafter
from mtp_mlx.events import Round
from mtp_mlx.options import parser

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def run(tiny, capfd):
    """Run a command over the tiny model: (exit code, standard output, standard error)."""

    def call(*words, model=True):
        code = main([*words, *(["--backbone", str(tiny.path)] if model else [])])
        return code, *capfd.readouterr()

    return call


def one_line(err):
    lines = err.strip().splitlines()
    return len(lines) == 1 and lines[0].startswith("mtp-mlx: ") and "Traceback" not in err


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


def test_options_may_stand_between_task_and_text(run):
    after = run("run", "proofread", "hello wrld", "--drafter", "plain", "--max-tokens", "6")
    between = run("run", "proofread", "--drafter", "plain", "--max-tokens", "6", "hello wrld")
    assert between[:2] == after[:2]
    for extra in (["more"], ["--nonsense"], ["more", "words"]):
        with pytest.raises(SystemExit):
            main(["run", "proofread", "hello", *extra])


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


@pytest.mark.parametrize("words", [("batch", "proofread", "in", "out"), ("bench",), ("doctor",)], ids=lambda w: w[0])
@pytest.mark.parametrize("texts", ["65", "1000", "0"])
def test_no_more_texts_at_once_than_memory_is_for(words, texts, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*words, "--batch", texts])
    assert stop.value.code == 2
    assert f"{texts} " in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    "words",
    [
        ("--max-tokens", "0"),
        ("--max-tokens", "-1"),
        ("--draft-length", "8"),
        ("--draft-length", "-5"),
        ("--width", "999"),
        ("--draft-length", "3", "--width", "3"),
        ("--draft-length", "-1"),
        ("--width", "0"),
        ("--max-tokens", "100000"),
    ],
)
def test_numbers_that_make_no_sense_are_refused_in_a_line(run, words):
    code, out, err = run("run", "proofread", "hi", "--drafter", "lookup", *words)
    assert (code, out) == (1, "")
    assert one_line(err)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "proofread", "hi", "--draft-length", "x"), "'x' is no draft length: give a whole number, or auto"),
        (("bench", "--limit", "9" * 5000), "is not a whole number, 1 or more"),
        (("bench", "--batch", "9" * 5000), "is not a whole number, 1 or more"),
        (("batch", "proofread", "in", "out", "--batch", "x"), "x is not a whole number, 1 or more"),
        (("train", "--data", "d", "--run", "r", "--output", "o", "--kv-layers", "x"), "'x' are no layers"),
    ],
    ids=["draft length", "limit", "sizes", "texts", "layers"],
)
def test_what_is_no_number_is_refused_without_a_name_of_the_code(words, said, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*words])
    assert stop.value.code == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert said in line
    assert "invalid _" not in line


def test_a_draft_that_is_too_long_for_the_width_names_the_width_for_it(run):
    _, _, err = run("run", "proofread", "hi", "--drafter", "lookup", "--draft-length", "9")
    assert "give 0 to 7, or --width 10 on the command line" in err
    _, _, err = run("run", "proofread", "hi", "--drafter", "lookup", "--draft-length", "64")
    assert err.strip().endswith("give 0 to 7")  # no width is large enough


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


def test_eval_counts_and_compares(run, tmp_path):
    data = tmp_path / "texts.jsonl"
    data.write_text("".join(json.dumps({"text": t}) + "\n" for t in ("a b a b", "  ", "one two")), encoding="utf-8")
    words = ("--task", "proofread", "--data", str(data), "--drafter", "lookup", "--draft-length", "3", "--json")
    code, out, _ = run("eval", *words)
    row = json.loads(out)
    assert code == 0
    assert (row["prompts"], row["identical"], row["mismatches"]) == (2, 2, [])
    assert [skipped["line"] for skipped in row["skipped"]] == [2]
    assert row["additional_per_pass"] == pytest.approx(row["accepted"] / row["rounds"])
    assert row["accepted"] < row["tokens"] <= row["accepted"] + row["rounds"] + row["prompts"]
    assert len(row["per_position"]) <= 3
    code, out, _ = run("eval", *words, "--limit", "1")
    assert json.loads(out)["prompts"] == 1
    assert "files" not in json.loads(out)


def test_eval_of_several_files_has_each_and_their_sum(run, tmp_path):
    paths = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for path, texts in zip(paths, (("a b a b", "c d c d c d"), ("one two",)), strict=True):
        path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts), encoding="utf-8")
    words = ("--task", "proofread", "--data", *map(str, paths), "--drafter", "lookup")
    code, out, _ = run("eval", *words, "--json")
    total = json.loads(out)
    assert code == 0
    assert [row["file"] for row in total["files"]] == [str(path) for path in paths]
    for name in ("prompts", "tokens", "rounds", "accepted", "identical"):
        assert total[name] == sum(row[name] for row in total["files"])
    low, high = total["interval"]
    assert low <= total["additional_per_pass"] <= high
    code, out, _ = run("eval", *words)
    assert out.count("additional_per_pass") == 3


def test_eval_tells_people_what_became_of_a_line(run, tmp_path, monkeypatch):
    data = tmp_path / "texts.jsonl"
    data.write_text('{"text": ""}\n{"text": "a b"}\n{"text": " "}\n', encoding="utf-8")
    _, out, _ = run("eval", "--task", "proofread", "--data", str(data), "--drafter", "lookup")
    skipped = "line 1: the text is empty: write something first\n                     line 3: the text is empty"
    assert f"skipped              {skipped}" in out
    assert "{" not in out
    monkeypatch.setattr("mtp_mlx.evaluate.plain", lambda *_, **__: [Round((), (), 0, 7, "plain", 0.125, 0.0, 0.1)])
    data.write_text('{"text": "a b"}\n', encoding="utf-8")
    _, out, err = run("eval", "--task", "proofread", "--data", str(data), "--drafter", "lookup")
    assert "mismatches           line 1: differs from token 1 on, margin 0.12" in out
    assert "not plain decode's: 1 of 1 text:" in err


@pytest.mark.parametrize("content", [b"", b"not json\n", b'{"no": "text"}\n', b'{"text": 5}\n', b"\xff\n"])
def test_eval_refuses_a_bad_file_in_a_line(run, tmp_path, content):
    data = tmp_path / "texts.jsonl"
    data.write_bytes(content)
    code, _, err = run("eval", "--task", "proofread", "--data", str(data), "--drafter", "plain")
    assert code == 1
    assert one_line(err)


def test_eval_says_where_a_text_is_not_plain_decodes(run, tmp_path, monkeypatch):
    def other(*arguments, **options):
        for event in plain(*arguments, **options):
            yield replace(event, token=event.token + 1) if isinstance(event, Round) and event.token else event

    monkeypatch.setattr("mtp_mlx.evaluate.plain", other)
    data = tmp_path / "texts.jsonl"
    data.write_text('{"text": "hi"}\n', encoding="utf-8")
    code, out, err = run("eval", "--task", "proofread", "--data", str(data), "--drafter", "lookup", "--json")
    assert code == 1
    assert [row["line"] for row in json.loads(out)["mismatches"]] == [1]
    assert one_line(err)


def test_eval_of_nothing_is_no_success(run, tmp_path):
    data = tmp_path / "texts.jsonl"
    data.write_text('{"text": ""}\n{"text": "  "}\n', encoding="utf-8")
    code, _, err = run("eval", "--task", "proofread", "--data", str(data), "--drafter", "plain")
    assert code == 1
    assert one_line(err)


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


def test_a_file_to_write_is_no_folder(run, tmp_path):
    (tmp_path / "in.txt").write_text("hi\n", encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        run("batch", "proofread", str(tmp_path / "in.txt"), f"{tmp_path / 'new'}/")
    assert ended.value.code == 2
    assert not (tmp_path / "new").exists()


def test_convert_refuses_what_is_no_gguf(tmp_path, capfd):
    (tmp_path / "x.gguf").write_bytes(b"nothing")
    assert main(["convert", str(tmp_path / "x.gguf"), str(tmp_path / "new" / "out")]) == 1
    assert one_line(capfd.readouterr().err)
    assert {path.name for path in tmp_path.iterdir()} == {"x.gguf"}  # no folder for nothing


def test_doctor_is_well_on_the_shipped_weights(capfd):
    code = main(["doctor"])
    out = capfd.readouterr().out
    assert "BAD" not in out
    assert code == 0
    assert "every bit equal" in out
    assert blas.load().name in out
    assert sys.platform != "linux" or f"threads: {blas.load().threads} ({blas.load().why})" in out


def test_doctor_looks_at_head_and_standalone_drafter_whatever_is_wrong_with_the_other(run, tiny_drafters, tmp_path):
    head, standalone = map(str, tiny_drafters)
    code, out, _ = run("doctor", "--head", head, "--standalone", standalone)
    assert (code, out.count("BAD")) == (0, 0)
    for folders, bad in (
        ((str(tmp_path / "none"), standalone), ["head"]),
        ((head, str(tmp_path / "none")), ["standalone"]),
        ((standalone, head), ["head", "standalone"]),
    ):
        code, out, _ = run("doctor", "--head", folders[0], "--standalone", folders[1])
        assert code == 1
        assert [line.split()[1] for line in out.splitlines() if line.startswith("BAD")] == bad


@pytest.mark.parametrize("words", [("doctor",), ("bench", "--growth")], ids=["doctor", "growth"])
@pytest.mark.parametrize("width", ["0", "65"])
def test_every_command_takes_the_same_widths(run, words, width):
    code, out, err = run(*words, "--width", width)
    assert (code, out) == (1, "")
    assert one_line(err) and f"width is {width}: give 1 to 64 rows" in err


def test_module_and_help_work_without_loading_mlx():
    script = "import sys; from mtp_mlx.options import parser; parser().format_help(); print('mlx.core' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "False"
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "mtp_mlx", "run", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=True)
    assert "App or sender: text" in " ".join(done.stdout.split())


def test_defaults_are_the_shipped_weights():
    arguments = parser().parse_args(["run", "proofread", "hi"])
    assert (arguments.backbone, arguments.head) == (weights.BACKBONE, weights.HEAD)
