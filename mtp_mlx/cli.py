"""The command line: thin commands over the library, one clear line for every error."""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from types import ModuleType
from typing import Any

from mtp_mlx import blas, terminal, weights
from mtp_mlx.options import parse
from mtp_mlx.profiles import human
from mtp_mlx.request import Request, check_numbers
from mtp_mlx.tasks import TASKS
from mtp_mlx.training.recipe import Recipe


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code."""
    try:
        arguments = parse(argv)
        if arguments.command in PRINTS and not _prints():
            raise ValueError("standard output is closed, so what this prints would be lost: leave it open")
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
        if problem := blas.load().problem:
            print(f"mtp-mlx: {problem}", file=sys.stderr)
        return COMMANDS[arguments.command](arguments)
    except BrokenPipeError:  # the reader has what it wanted: no more to say, not even when Python flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError) as error:  # WeightsError, TextError, DataError, ProfileError are ValueErrors
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and not error.filename:
            error = "there is no room for what is written: make some, and run the same command again"
        print(f"mtp-mlx: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("mtp-mlx: stopped", file=sys.stderr)
        return 130


def _prints() -> bool:
    """Whether there is a standard output: Python has None for one that is closed."""
    return sys.stdout is not None


def _load(arguments: argparse.Namespace):
    """The pipeline that the options ask for; without the head where no head drafts."""
    from mtp_mlx import pipeline

    head = arguments.head if arguments.drafter in ("mtp", "auto") else None
    names = ("standalone", "profile", "row_by_row")
    return pipeline.load(arguments.backbone, head, **{name: getattr(arguments, name) for name in names})


def _read_text(arguments: argparse.Namespace) -> str:
    from mtp_mlx.prompt import TextError

    if arguments.text not in (None, "-"):
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
    chosen = request.draft_length == "auto" and request.width is None and request.drafter != "plain"
    if chosen and run.trace.draft_length == 0:
        drafts = "nothing drafted, as none would have paid here (--draft-length 4 drafts all the same), "
    tokens, passes = terminal.counted(stats.tokens, "token"), terminal.counted(stats.rounds, "pass", "passes")
    speed = f"{stats.additional_per_pass:.2f} additional tokens per pass, {drafts}{stats.tokens_per_second:.1f}"
    print(f"{tokens} in {passes} after the prompt's{f': {speed} tokens/s' if stats.rounds else ''}", file=sys.stderr)
    if run.profile.budget_bytes is not None:
        used, budget = human(sum(run.trace.memory["entries"].values())), human(run.profile.budget_bytes)
        print(f"{used} of the {budget} of {run.profile.name} taken", file=sys.stderr)
    if run.trace.finish == "budget":
        most = terminal.counted(run.trace.max_tokens, "token")
        print(f"mtp-mlx: stopped at {most}, the most to write (--max-tokens)", file=sys.stderr)
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
    if total.mismatches:
        texts = terminal.counted(len(total.prompts), "text")
        wrong = f"not plain decode's: {len(total.mismatches)} of {texts}"
        print(f"mtp-mlx: {wrong}: `mtp-mlx doctor` looks whether this machine is exact", file=sys.stderr)
    if not total.prompts:
        print(f"mtp-mlx: no text could be decoded ({total.skipped[0]['why']})", file=sys.stderr)
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
    task = arguments.task or sorted(TASKS)[0]
    width = Request(task=task, text="", width=arguments.width).rows
    loaded = pipeline.load(arguments.backbone, arguments.head)
    curve = growth.growth(loaded, task=task, width=width)
    points = list(tqdm(curve, total=len(growth.CONTEXTS), desc="contexts", disable=None))
    return _shown_curve(points, arguments, by=growth, name="growth")


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
    loaded = pipeline.load(arguments.backbone, arguments.head, standalone=arguments.standalone)
    texts = texts or list(TASKS[task].examples[: arguments.limit])
    found = curve.curve(loaded, texts, request=request, batches=arguments.batch)
    points = list(tqdm(found, total=len(arguments.batch), desc="batches", disable=None))
    return _shown_curve(points, arguments, by=curve, name="batch")


def _shown_curve(points: Sequence[Any], arguments: argparse.Namespace, *, by: ModuleType, name: str) -> int:
    print(json.dumps({name: by.to_json(points)}) if arguments.json else by.table(points))
    if arguments.plot:
        by.plot(points, arguments.plot)
    return 0


def _shown(value: object) -> str:
    """A figure of an evaluation for people: two decimals, lists without brackets, lines of a file below each other."""
    if isinstance(value, dict):  # of a text that was skipped, or that is not plain decode's
        wrong = (
            f"differs from token {value['position'] + 1} on, margin {value['margin']:.2g}" if "margin" in value else ""
        )
        return f"line {value['line']}: {wrong or value['why']}"
    if isinstance(value, list):
        below = "\n" + " " * 21
        return (below if isinstance(next(iter(value), None), dict) else ", ").join(map(_shown, value)) or "none"
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

    check_numbers(max_tokens=1, width=arguments.width, draft_length=0)
    folders = (arguments.backbone, arguments.head, arguments.standalone)
    well = True
    for finding in examine(*folders, width=arguments.width, batch=arguments.batch):
        print(f"{'ok ' if finding.good else 'BAD'}  {finding.name:10} {finding.text}", flush=True)
        well = well and finding.good
    print("all well" if well else "something is wrong: see the lines that begin with BAD")
    return 0 if well else 1


def _lessons(arguments: argparse.Namespace) -> int:
    from mtp_mlx.lessons import record

    record()
    return 0


COMMANDS = {
    "run": _run,
    "eval": _eval,
    "bench": _bench,
    "batch": _batch,
    "train": _train,
    "convert": _convert,
    "doctor": _doctor,
    "lessons": _lessons,
}


PRINTS = ("run", "eval", "bench", "doctor")  # the commands whose work is what they print


if __name__ == "__main__":
    sys.exit(main())
