"""The iterator: texts in, each one's answer out, or what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from mtp_mlx.batch.pace import measure
from mtp_mlx.events import Done, Prefilled
from mtp_mlx.profiles import Ledger, ProfileError, admit, get, watch
from mtp_mlx.request import WIDTH, Request
from mtp_mlx.tasks import TASKS
from mtp_mlx.trace import Trace

if TYPE_CHECKING:
    from mtp_mlx.pipeline import Pipeline

MOST_AT_ONCE = 16  # where nobody said how many

Rows = Iterable[tuple[Any, str]]
Answers = Iterator[tuple[Any, Mapping[str, Any]]]


def run(
    rows: Rows,
    *,
    request: Request | str,
    pipeline: Pipeline | None = None,
    batch: int = 1,
    timings: bool = True,
    stopping: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda line: None,
) -> Answers:
    """Answer each text, as ``request`` asks for but for its own text.

    Args:
        rows: (key, text) pairs, such as ``enumerate(texts)``; read as they are needed, 64 ahead at most.
        request: or only the name of a task.
        pipeline: the loaded model; by default the shipped one is loaded.
        batch: the most texts to decode at once. With one, answers come in the rows' order and are bit for bit those of
            ``pipeline.start``; with more, as they are done, and see ``batched.decode`` on what is equal to what.
        stopping: asked before a text is begun; when it says yes, only those in hand are finished.
        say: told, in a line and once, what a reader should know: that a profile's memory budget allows fewer texts at
            once, or that decoding is not exact on this device.

    Yields:
        (key, result): text, tokens, rounds, accepted, additional_per_pass, finish and seconds, or only ``error``.
    """
    if isinstance(request, str):
        request = Request(task=request, text="", draft_length="auto")
    if not isinstance(batch, int) or batch < 1:
        raise ValueError(f"batch is {batch!r}: give how many texts to decode at once, at least 1")
    pipeline = pipeline or _shipped()
    if batch > 1:
        if request.draft_length == "auto":
            request = measure(pipeline, request, batch=batch).settle(request)
        yield from _together(rows, pipeline, request, batch, timings, stopping, say)
        return
    said: set[str] = set()
    for key, text in rows:
        if stopping():
            return
        started = perf_counter()
        try:
            run = pipeline.start(replace(request, text=text))
        except ValueError as error:  # TextError, ProfileError: this text's alone
            yield key, failure(error)
            continue
        for _ in run:
            pass
        for warning in {*run.trace.warnings} - said:
            said.add(warning)
            say(warning)
        yield key, result(run.trace, perf_counter() - started if timings else None)


def _shipped() -> Pipeline:
    from mtp_mlx import blas

    blas.load()  # before anything imports mlx
    from mtp_mlx.pipeline import load

    return load()


def _together(
    rows: Rows,
    pipeline: Pipeline,
    request: Request,
    batch: int,
    timings: bool,
    stopping: Callable[[], bool],
    say: Callable[[str], None],
) -> Answers:
    import mlx.core as mx

    from mtp_mlx import batched
    from mtp_mlx.drafters.together import Text, together
    from mtp_mlx.prompt import frame

    keys: dict[Hashable, Any] = {}  # of the texts in hand, by our own number: two keys may be equal
    failures: dict[Hashable, ValueError] = {}
    traces: dict[Hashable, Trace] = {}
    begun: dict[Hashable, float] = {}
    sizes: dict[int, int] = {}
    said: set[str] = set()
    tokenizer = pipeline.backbone.tokenizer

    def size(capacity: int) -> int:
        if capacity not in sizes:
            sizes[capacity] = fitting(pipeline, request.profile, batch, capacity, request.rows)
            if sizes[capacity] < batch:
                say(f"{sizes[capacity]} at once, not {batch}, where a text takes {capacity:,} rows of KV cache")
            result = pipeline.probe(request.rows, texts=sizes[capacity])
            if not result.exact and str(result) not in said:
                said.add(str(result))
                say(str(result))
        return sizes[capacity]

    def texts() -> Iterator[Text]:
        for number, (key, text) in enumerate(rows):
            keys[number] = key
            try:
                one = replace(request, text=text)
                prompt = pipeline.prompt(one)
                most = pipeline.max_tokens(one, prompt)
                size(batched.capacity(len(prompt.ids), most, request.rows))
                yield Text(number, list(prompt.ids), most)
            except ValueError as error:
                failures[number] = error
                yield Text(number, [], 0)

    events = batched.decode(
        pipeline.backbone,
        texts(),
        drafters=together(pipeline.drafter(request.drafter)),
        prefix=frame(tokenizer, TASKS[request.task])[0],
        size=size,
        width=request.rows,
        draft_length=request.drafts,
        stopping=stopping,
    )
    watched = False
    mx.reset_peak_memory()
    for number, event in events:
        if number in failures:
            yield keys.pop(number), failure(failures.pop(number))
            continue
        if isinstance(event, Prefilled):
            begun[number] = perf_counter() - event.seconds
            traces[number] = Trace(
                task=request.task,
                drafter=request.drafter,
                width=request.rows,
                draft_length=request.drafts,
                max_tokens=request.max_tokens or 0,
                decode=tokenizer.decode,
                eos=pipeline.backbone.eos,
            )
        traces[number].add(event)
        if isinstance(event, Done):
            if not watched and (warning := watch(get(request.profile), mx.get_peak_memory())):
                watched = True
                say(warning)
            seconds = perf_counter() - begun.pop(number)
            yield keys.pop(number), result(traces.pop(number), seconds if timings else None)


def fitting(pipeline: Pipeline, profile: str, batch: int, capacity: int, width: int) -> int:
    """How many texts of a KV capacity a profile's memory budget lets decode at once: ``batch``, its half, and so on.

    Raises:
        ProfileError: not even one.
    """
    while True:
        try:
            admit(get(profile), ledger(pipeline, batch=batch, capacity=capacity, width=width))
            return batch
        except ProfileError:
            if batch == 1:
                raise
            batch //= 2


def ledger(pipeline: Pipeline, *, batch: int, capacity: int, width: int) -> Ledger:
    """What so many texts take, in bytes: KV caches of those that are decoded and those that join next, and for each one
    a second time while it is written; and the logits of a pass.
    """
    entries = pipeline.ledger(rows=capacity).entries
    backbone = pipeline.backbone
    logits = batch * width * backbone.args.vocab_size * backbone.dtype.size
    return Ledger(entries | {"KV cache": 4 * batch * entries["KV cache"], "logits": 2 * logits})


def largest(pipeline: Pipeline, profile: str) -> int:
    """How many short texts to decode at once: as many as pay on most machines, if a profile's budget allows them."""
    from mtp_mlx.rounds import CAPACITY

    return fitting(pipeline, profile, MOST_AT_ONCE, CAPACITY, WIDTH)


def failure(error: ValueError) -> dict[str, Any]:
    """What is told of a text that cannot be worked on."""
    return {"error": " ".join(str(error).split())}


def result(trace: Trace, seconds: float | None) -> dict[str, Any]:
    """What is told of one answer; without ``seconds`` it is the same every time."""
    told = {
        "text": trace.text,
        "tokens": trace.stats.tokens,
        "rounds": trace.stats.rounds,
        "accepted": trace.stats.accepted,
        "additional_per_pass": round(trace.stats.additional_per_pass, 3),
        "finish": trace.finish,
    }
    return told if seconds is None else told | {"seconds": round(seconds, 3)}
