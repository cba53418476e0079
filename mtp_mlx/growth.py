"""How the cost of a token and memory grow with the context, as a curve."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import mlx.core as mx

from mtp_mlx.costs import measure
from mtp_mlx.pipeline import Pipeline
from mtp_mlx.profiles import human
from mtp_mlx.request import WIDTH

CONTEXTS = (64, 128, 256, 512, 1024, 2048)


@dataclass(frozen=True)
class Point:
    """What one length of context costs.

    Attributes:
        context: committed tokens.
        prefill_seconds: of all of them, in chunks.
        prefill_bytes: the peak while they are prefilled, without the weights and the KV cache.
        kv_bytes: the KV cache of the backbone; the head has none.
        plain_seconds: one pass of one row, which is one token.
        pass_seconds: one pass of ``width`` rows.
        step_seconds: one draft step.
        token_seconds: a token of speculative decode, at the acceptance that is expected before a text begins.
    """

    context: int
    prefill_seconds: float
    prefill_bytes: int
    kv_bytes: int
    plain_seconds: float
    pass_seconds: float
    step_seconds: float
    token_seconds: float


def growth(
    pipeline: Pipeline, *, task: str, drafter: str = "mtp", width: int = WIDTH, contexts: Sequence[int] | None = None
) -> Iterator[Point]:
    """Measure every context (by default 64 to 2,048 tokens), the shortest first."""
    backbone, made, chances = pipeline.backbone, pipeline.drafter(drafter), pipeline.chances(drafter, task)
    for context in contexts or CONTEXTS:
        mx.clear_cache()
        kv = backbone.make_kv(context)
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        started = perf_counter()
        mx.eval(backbone.prefill([40 + i % 1000 for i in range(context)], kv))
        seconds, peak = perf_counter() - started, mx.get_peak_memory() - before - kv.nbytes
        costs = measure(backbone, made, widths=(1, width), context=context)
        length = costs.best_length(chances, width=width, most=width - 1)
        yield Point(
            context=context,
            prefill_seconds=seconds,
            prefill_bytes=peak,
            kv_bytes=kv.nbytes,
            plain_seconds=costs.passes[1],
            pass_seconds=costs.passes[width],
            step_seconds=costs.step,
            token_seconds=1 / costs.rate(chances, width=width, length=length),
        )


def to_json(points: Sequence[Point]) -> list[dict[str, Any]]:
    return [asdict(point) for point in points]


def table(points: Sequence[Point]) -> str:
    """The curve in Markdown."""
    head = ("context", "prefill", "its peak", "KV cache", "pass of 1 row", "pass", "draft step", "token, drafted")
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for p in points:
        passes = (p.plain_seconds, p.pass_seconds, p.step_seconds, p.token_seconds)
        cells = (f"{p.context:,}", f"{p.prefill_seconds:.2f} s", human(p.prefill_bytes), human(p.kv_bytes))
        lines.append(f"| {' | '.join((*cells, *(f'{1000 * seconds:.1f} ms' for seconds in passes)))} |")
    return "\n".join(lines)


def plot(points: Sequence[Point], path: Path) -> None:
    """Draw milliseconds a token, plain and drafted, and the KV cache over the context, to a PNG."""
    import matplotlib.figure  # here, so that a bench without a plot does not wait for it

    figure = matplotlib.figure.Figure(figsize=(8, 4), layout="constrained")
    time, memory = figure.subplots(1, 2)
    contexts = [p.context for p in points]
    time.plot(contexts, [1000 * p.plain_seconds for p in points], "o-", color="#767676", label="plain, one row")
    time.plot(contexts, [1000 * p.token_seconds for p in points], "s-", color="#0072B2", label="drafted")
    time.set_ylabel("ms a token")
    memory.plot(contexts, [p.kv_bytes / 2**20 for p in points], "o-", color="#0072B2", label="KV cache")
    memory.plot(contexts, [p.prefill_bytes / 2**20 for p in points], "s-", color="#A34700", label="peak of the prefill")
    memory.set_ylabel("MiB")
    for axes in (time, memory):
        axes.set_xlabel("tokens of context")
        axes.set_ylim(bottom=0)
        axes.legend()
    figure.savefig(path, dpi=100)
