"""The command ``mtp-mlx batch``: a job over the loaded model, stopped by Ctrl-C and gone on with by the same words."""

from __future__ import annotations

import hashlib
import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from mtp_mlx import __version__
from mtp_mlx.batch.answers import largest, run
from mtp_mlx.batch.files import Job, Summary, owned, spool
from mtp_mlx.batch.pace import Pace, measure, work_through
from mtp_mlx.batch.progress import Progress
from mtp_mlx.batch.rows import Source, format_of
from mtp_mlx.batch.streams import BatchError
from mtp_mlx.request import Request
from mtp_mlx.tasks import TASKS
from mtp_mlx.terminal import counted
from mtp_mlx.weights import sha256

if TYPE_CHECKING:
    from mtp_mlx.pipeline import Pipeline

STOPPED = 130  # the exit code of a command that Ctrl-C ended


def answer(
    input: Path,
    output: Path,
    request: Request,
    *,
    load: Callable[[], Pipeline],
    folders: Mapping[str, Path],
    format: str | None = None,
    field: str = "text",
    into: str = "result",
    batch: int | None = 1,
    row_by_row: bool = False,
    timings: bool = True,
    quiet: bool = False,
    json_log: bool = False,
) -> int:
    """Answer every row of ``input`` in ``output``; return the exit code: 0 only where every row has its answer.

    Args:
        input: a file; ``-`` is standard input.
        load: loads the model; not before all that can be refused without it is.
        batch: how many texts to decode at once, at most; None: as many as the profile's memory budget allows.
        folders: where the weights of ``backbone``, ``head`` and ``standalone`` are.

    Raises:
        BatchError: see ``files.Job``.
    """
    rank, size, meet = processes()
    with owned(output, rank=rank):
        piped = str(input) == "-"
        if piped and size > 1:
            raise BatchError("standard input cannot be shared by several processes: give a file")
        if piped and sys.stdin is None:
            raise BatchError("standard input is closed: give a file, or pipe the rows in")
        format = format or ("text" if piped else format_of(input))
        path, name = (spool(sys.stdin.buffer, output), "standard input") if piped else (input, "")
        source = Source(path, format, field, into, name)
        paced = request.draft_length == "auto"
        pipeline = load()
        batch = largest(pipeline, request.profile) if batch is None else batch
        check(pipeline, request, batch)
        drafter = {"mtp": "head", "auto": "head", "standalone": "standalone"}.get(request.drafter)
        about = {
            "task": request.task,
            "prompt": hashlib.sha256(repr(TASKS[request.task]).encode()).hexdigest(),
            **{name: getattr(request, name) for name in ("drafter", "max_tokens", "profile")},
            "width": request.width,
            "draft_length": request.draft_length,
            "batch": batch,
            "row_by_row": row_by_row,
            "timings": timings,
            "backbone": pipeline.backbone.fingerprint,
            **({} if drafter is None else {drafter: sha256(folders[drafter] / "model.safetensors")}),
            "mlx": version("mlx"),
            "mtp_mlx": __version__,
            **{name: getattr(source, name) for name in ("format", "field", "into")},
        }
        begun = Event()
        # Of several processes none may go while another waits for it.
        with stopping_gently(lambda: begun.is_set() or size > 1) as stop:
            job = Job(
                source,
                output,
                about=about,
                rank=rank,
                size=size,
                meet=meet,
                measure=lambda: measure(pipeline, request, batch=batch).to_json() if paced else {},
                stopping=stop.is_set,
            )
            begun.set()
            progress = Progress(job.total, done=job.journal.done, quiet=quiet or rank > 0, as_json=json_log)
            progress.tell(batch=batch)

            def work(rows: range, settled: Request) -> bool:
                progress.tell(width=settled.rows, draft_length=settled.drafts)
                answers = partial(
                    run,
                    pipeline=pipeline,
                    request=settled,
                    batch=batch,
                    timings=timings,
                    stopping=stop.is_set,
                    say=progress.say,
                )
                return job.run(answers, rows=rows, seen=progress.add)

            def seen(rows: range) -> tuple[int, int]:
                tally = job.tally(rows)
                return tally.rounds, tally.accepted

            try:
                if paced:
                    pace = Pace.from_json(job.measured)
                    work_through(job.total, pace, request, batch=batch, work=work, seen=seen)
                else:
                    work(range(job.total), request)
            finally:
                progress.close()
            summary = job.finish()
    if rank > 0:
        return STOPPED if stop.is_set() else 0  # the first process speaks for all
    if summary is None:
        done = f"{job.journal.done:,} of {counted(job.total, 'row')} done"
        print(f"mtp-mlx: stopped with {done}: run the same command again to go on", file=sys.stderr)
        return STOPPED
    if json_log and (summary.failed or not quiet):
        print(json.dumps(vars(summary)), file=sys.stderr)
    elif not quiet:
        print(told(summary, output), file=sys.stderr)
    elif summary.failed:
        failed = f"{summary.failed:,} of {counted(summary.rows, 'row')} failed"
        print(f"mtp-mlx: {failed}, the first one in {summary.failures[0]}", file=sys.stderr)
    return 1 if summary.failed else 0


def check(pipeline: Pipeline, request: Request, batch: int) -> None:
    """Raise ValueError for what no row can be answered with, before anything is begun."""
    drafter = pipeline.drafter(request.drafter)
    if batch > 1:
        from mtp_mlx.drafters.together import together

        together(drafter)
        if pipeline.backbone.row_by_row:
            raise BatchError("--row-by-row takes one text at a time: give --batch 1")


def processes() -> tuple[int, int, Callable[[bool], bool]]:
    """Which of how many processes this is, as MLX's own launcher started them, and what waits for all of them.

    That tells each one whether any of them came with True.
    """
    import mlx.core as mx

    group = mx.distributed.init()
    return (
        group.rank(),
        group.size(),
        lambda mine: bool(mx.distributed.all_sum(mx.array([float(mine)]), group=group, stream=mx.cpu).item()),
    )


def told(summary: Summary, output: Path) -> str:
    """A summary for people."""
    lines = [
        f"{output}: {counted(summary.rows, 'row')}, {summary.rows - summary.failed:,} answered, "
        f"{summary.failed:,} failed",
        f"{counted(summary.tokens, 'token')} in {counted(summary.rounds, 'pass', 'passes')} after the prompts': "
        f"{summary.additional_per_pass:.2f} additional tokens per pass",
    ]
    return "\n".join([*lines, *summary.failures, *(["..."] if summary.failed > len(summary.failures) else [])])


@contextmanager
def stopping_gently(begun: Callable[[], bool]) -> Iterator[Event]:
    """An event that the first Ctrl-C sets; the second one stops at once, as any does where nothing is ``begun`` yet."""
    stop = Event()

    def handle(number: int, frame: Any) -> None:
        if not begun():
            raise KeyboardInterrupt
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("mtp-mlx: finishing the rows in hand (Ctrl-C again: at once)", file=sys.stderr)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
