"""What the command line takes: numbers, names and widths that make sense, and a clear refusal of all others."""

import os
import subprocess
import sys

import pytest
from conftest import one_line

from mtp_mlx import weights
from mtp_mlx.cli import main
from mtp_mlx.options import parser


def test_options_may_stand_between_task_and_text(run):
    after = run("run", "proofread", "hello wrld", "--drafter", "plain", "--max-tokens", "6")
    between = run("run", "proofread", "--drafter", "plain", "--max-tokens", "6", "hello wrld")
    assert between[:2] == after[:2]
    for extra in (["more"], ["--nonsense"], ["more", "words"]):
        with pytest.raises(SystemExit):
            main(["run", "proofread", "hello", *extra])


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


def test_a_file_to_write_is_no_folder(run, tmp_path):
    (tmp_path / "in.txt").write_text("hi\n", encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        run("batch", "proofread", str(tmp_path / "in.txt"), f"{tmp_path / 'new'}/")
    assert ended.value.code == 2
    assert not (tmp_path / "new").exists()


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
