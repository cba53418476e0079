"""The iterator: texts in, each one's answer out, or what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from mtp_mlx.request import Request

if TYPE_CHECKING:
    from mtp_mlx.metrics import Stats
    from mtp_mlx.pipeline import Pipeline


def run(
    rows: Iterable[tuple[Any, str]], *, pipeline: Pipeline, request: Request, timings: bool = True
) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """Answer each text, as ``request`` asks for but for its own text.

    Args:
        rows: (key, text) pairs, such as ``enumerate(texts)``; read as they are needed.

    Yields:
        (key, result): text, tokens, rounds, accepted, additional_per_pass, finish and seconds, or only ``error``.
    """
    for key, text in rows:
        started = perf_counter()
        try:
            run = pipeline.start(replace(request, text=text))
        except ValueError as error:  # TextError, ProfileError: this text's alone
            yield key, {"error": " ".join(str(error).split())}
            continue
        for _ in run:
            pass
        trace = run.trace
        seconds = perf_counter() - started if timings else None
        yield key, result(trace.text, trace.stats, finish=trace.finish, seconds=seconds)


def result(text: str, stats: Stats, *, finish: str | None, seconds: float | None) -> dict[str, Any]:
    """What is told of one answer; without ``seconds`` it is the same every time."""
    told = {
        "text": text,
        "tokens": stats.tokens,
        "rounds": stats.rounds,
        "accepted": stats.accepted,
        "additional_per_pass": round(stats.additional_per_pass, 3),
        "finish": finish,
    }
    return told if seconds is None else told | {"seconds": round(seconds, 3)}
