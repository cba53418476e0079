"""Rows a minute over the number of texts decoded at once, plain and drafted, as a curve."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from mtp_mlx.batch.answers import run
from mtp_mlx.batch.pace import measure
from mtp_mlx.pipeline import Pipeline
from mtp_mlx.request import Request

TURNS = 4  # each place of a batch is filled so many times at least, so that its end weighs little


@dataclass(frozen=True)
class Point:
    """What so many texts at once bring.

    Attributes:
        width: rows of a text in each pass, as chosen for drafted decode; plain decode has one.
        plain: rows a minute of plain decode.
        drafted: rows a minute of drafted decode.
        additional: tokens accepted in a pass of a text, on average.
        tokens_per_pass: tokens written in a pass of a text, on average; None where a first token was all of each.
        rows: how many were answered each way.
        same: how many are the same text with and without drafts at that width, as is promised.
        as_one: how many are the same text as plain decode of one text, which is not.
    """

    batch: int
    width: int
    plain: float
    drafted: float
    additional: float
    tokens_per_pass: float | None
    rows: int
    same: int
    as_one: int


def curve(pipeline: Pipeline, texts: Sequence[str], *, request: Request, batches: Sequence[int]) -> Iterator[Point]:
    """Answer the texts, as often as it takes to fill each place some times, at every number at once."""
    one: list[str | None] = []
    for batch in batches:
        many = [*texts] * -(-TURNS * batch // len(texts))
        settled = measure(pipeline, request, batch=batch).settle(request)
        ways = {
            "plain": replace(settled, drafter="plain", width=1, draft_length=0),
            "drafted": settled,
            "undrafted": replace(settled, drafter="plain", draft_length=0),
        }
        seconds, results = {}, {}
        for name, way in ways.items():
            for _ in run(enumerate(many[:1]), pipeline=pipeline, request=way, batch=batch):
                pass  # warm: the prefix is there, and this device is probed
            started = perf_counter()
            results[name] = dict(run(enumerate(many), pipeline=pipeline, request=way, batch=batch))
            seconds[name] = perf_counter() - started
        said = {name: [found[i].get("text") for i in range(len(many))] for name, found in results.items()}
        one = one or said["plain"][: len(texts)]
        drafted: Mapping[int, Mapping[str, Any]] = results["drafted"]
        rounds = sum(result.get("rounds", 0) for result in drafted.values())
        later = sum(max(result.get("tokens", 0) - 1, 0) for result in drafted.values())  # but for first tokens
        yield Point(
            batch=batch,
            width=settled.rows,
            plain=60 * len(many) / seconds["plain"],
            drafted=60 * len(many) / seconds["drafted"],
            additional=sum(result.get("accepted", 0) for result in drafted.values()) / max(rounds, 1),
            tokens_per_pass=later / rounds if rounds else None,
            rows=len(many),
            same=sum(a == b for a, b in zip(said["drafted"], said["undrafted"], strict=True)),
            as_one=sum(text == one[i % len(one)] for i, text in enumerate(said["drafted"])),
        )


def to_json(points: Sequence[Point]) -> list[dict[str, Any]]:
    """The points, each with its ratios: to plain decode of the first one's batch, and of its own."""
    return [
        {**asdict(p), "ratio": p.drafted / points[0].plain, "ratio_same_batch": p.drafted / p.plain} for p in points
    ]


def table(points: Sequence[Point]) -> str:
    """The curve in Markdown."""
    head = ("at once", "plain, rows/min", "drafted, rows/min", f"× plain at {points[0].batch}", "× plain", "width")
    head += ("tokens/pass", "as undrafted", "as one plain")
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for p, ratios in zip(points, to_json(points), strict=True):
        cells = (str(p.batch), f"{p.plain:.1f}", f"{p.drafted:.1f}", f"{ratios['ratio']:.2f}")
        cells += (
            f"{ratios['ratio_same_batch']:.2f}",
            str(p.width),
            "?" if p.tokens_per_pass is None else f"{p.tokens_per_pass:.2f}",
        )
        lines.append(f"| {' | '.join((*cells, f'{p.same}/{p.rows}', f'{p.as_one}/{p.rows}'))} |")
    return "\n".join(lines)


def plot(points: Sequence[Point], path: Path) -> None:
    """Draw rows a minute, plain and drafted, over the texts at once, to a PNG."""
    import matplotlib.figure  # here, so that a bench without a plot does not wait for it

    figure = matplotlib.figure.Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    batches = [point.batch for point in points]
    axes.plot(batches, [point.plain for point in points], "o--", color="#767676", label="plain")
    axes.plot(batches, [point.drafted for point in points], "o-", color="#0072B2", label="drafted")
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, map(str, batches))
    axes.set_xlabel("texts decoded at once")
    axes.set_ylabel("rows a minute")
    axes.set_ylim(0)
    axes.legend()
    figure.savefig(path, dpi=100)
