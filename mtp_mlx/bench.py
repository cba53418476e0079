"""Side by side: the same prompts through several ways to decode them, in one process, prompt by prompt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.generate import generation_stream

from mtp_mlx.arms import LLAMA_CPP, PLAIN, Arm, Case
from mtp_mlx.pipeline import Pipeline
from mtp_mlx.profiles import human
from mtp_mlx.prompt import TextError
from mtp_mlx.request import Request

REFERENCE = "plain"  # whose ids the others' are compared with; the first arm where it is left out


@dataclass(frozen=True)
class Timing:
    """One prompt through one arm; seconds are wall-clock.

    ``later`` tokens, ``passes`` and ``drafted`` steps come after what came first (with us, a token with the prompt);
    ``rate`` is how many of these tokens came a second, None where there are none.
    """

    ids: tuple[int, ...]
    first_seconds: float
    seconds: float
    rate: float | None
    later: int
    passes: int
    drafted: int
    peak: int


def cases(pipeline: Pipeline, requests: Mapping[str, Request]) -> list[Case]:
    """The cases of requests, each under the name of its place.

    Raises:
        TextError: one cannot be worked on; the line begins with its place.
    """
    made = []
    for place, request in requests.items():
        try:
            prompt = pipeline.prompt(request)
            most = pipeline.max_tokens(request, prompt)
            made.append(Case(prompt.ids, most, request.task, pipeline.prefix(prompt)))
        except TextError as error:
            raise TextError(f"{place}: {error}") from error
    return made


def measure(arm: Arm, case: Case) -> Timing:
    """Decode one prompt."""
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    ids: list[int] = []
    later = passes = drafted = 0
    now = first = started = perf_counter()
    for step in arm.decode(case):
        now = perf_counter()
        if not ids:
            first = now
        else:
            later += len(step.ids)
            passes += 1
            drafted += step.drafted
        ids += step.ids
    rate = later / (now - first) if passes else None
    mx.synchronize(generation_stream)  # mlx-lm computes a token ahead: not in the next arm's time
    peak = max(mx.get_peak_memory(), before) - before  # an arm outside MLX has none
    return Timing(tuple(ids), first - started, now - started, rate, later, passes, drafted, peak)


@dataclass
class Bench:
    """What was measured so far."""

    arms: list[Arm]
    pass_bytes: int
    timings: dict[str, list[Timing]] = field(default_factory=dict)

    def run(self, cases: Sequence[Case]) -> Iterator[None]:
        """Measure every arm on each case; yields once a case.

        The arms take turns to be first, and go forth and back: each comes after one neighbour as often as the other.
        """
        for arm in self.arms:  # warm: weights are in memory, kernels are chosen, costs are known
            measure(arm, replace(cases[0], most=min(8, cases[0].most)))
        for i, case in enumerate(cases):
            turn = i % len(self.arms)
            order = (*self.arms[turn:], *self.arms[:turn])
            for arm in order[:: -1 if i % 2 else 1]:
                self.timings.setdefault(arm.name, []).append(measure(arm, case))
            yield

    def to_json(self) -> dict[str, Any]:
        """arms: name → medians over prompts (rates with quartiles), sums of tokens and of the passes after the first
        token, tokens and bytes of weights read for each of these; and the ratios of rates and seconds to the fastest
        plain arm's.

        ``identical`` is against plain decode at the usual width: an arm that chose another one may differ in near-ties.
        """
        names = [arm.name for arm in self.arms]
        reference = REFERENCE if REFERENCE in names else names[0]
        arms = {arm.name: self._arm(arm, self.timings[reference]) for arm in self.arms}
        plain = [name for name in names if name in PLAIN and arms[name]["tokens_per_s"]]
        fastest = max(plain, key=lambda name: arms[name]["tokens_per_s"], default=None)
        rate, seconds = (arms[fastest]["tokens_per_s"], arms[fastest]["seconds"]) if fastest else (None, None)
        return {
            "prompts": len(self.timings[reference]),
            "reference": reference,
            "arms": arms,
            "fastest_plain": fastest,
            "ratio": {name: _over(row["tokens_per_s"], rate) for name, row in arms.items()},
            "ratio_end_to_end": {name: _over(seconds, row["seconds"]) for name, row in arms.items()},
        }

    def _arm(self, arm: Arm, reference: list[Timing]) -> dict[str, Any]:
        mine = self.timings[arm.name]
        later, passes = sum(t.later for t in mine), sum(t.passes for t in mine)
        rates = [t.rate for t in mine if t.rate is not None]
        low, median, high = np.percentile(rates, [25, 50, 75]).tolist() if rates else (None, None, None)
        pass_bytes = self.pass_bytes if arm.pass_bytes is None else arm.pass_bytes
        read = passes * pass_bytes + sum(t.drafted for t in mine) * arm.draft_bytes
        return {
            "tokens_per_s": median,
            "quartiles": [low, high],
            "ttft_s": float(np.median([t.first_seconds for t in mine])),
            "seconds": float(np.median([t.seconds for t in mine])),
            "tokens": sum(len(t.ids) for t in mine),
            "passes": passes,
            "tokens_per_pass": later / passes if passes else None,
            "bytes_per_token": read / later if later else None,
            "peak_bytes": arm.weights + max(t.peak for t in mine),
            "identical": sum(t.ids == r.ids for t, r in zip(mine, reference, strict=True)),
        }


def table(result: dict[str, Any]) -> str:
    """The result in Markdown."""
    head = ("arm", "tokens/s", "quartiles", "ratio", "first token", "end to end", "ratio", "tokens/pass")
    head += ("read/token", "peak", "same ids")
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for name, row in result["arms"].items():
        cells = (
            name + (" (fastest plain)" if name == result["fastest_plain"] else ""),
            _shown(row["tokens_per_s"], ".1f"),
            " to ".join(_shown(rate, ".1f") for rate in row["quartiles"]),
            _shown(result["ratio"][name], ".2f"),
            f"{row['ttft_s']:.2f} s",
            f"{row['seconds']:.2f} s",
            _shown(result["ratio_end_to_end"][name], ".2f"),
            _shown(row["tokens_per_pass"], ".2f"),
            "?" if row["bytes_per_token"] is None else human(round(row["bytes_per_token"])),
            human(row["peak_bytes"]),
            f"{row['identical']}/{result['prompts']}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _over(above: float | None, below: float | None) -> float | None:
    return None if above is None or below is None else above / below


def _shown(figure: float | None, form: str) -> str:
    return "?" if figure is None else format(figure, form)


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw decode tokens a second of every arm, median and quartiles, to a PNG."""
    import matplotlib.figure  # here, so that a bench without a plot does not wait for it

    names = [name for name, row in result["arms"].items() if row["tokens_per_s"] is not None][::-1]
    rows = [result["arms"][name] for name in names]
    figure = matplotlib.figure.Figure(figsize=(8, 1 + 0.45 * len(names)), layout="constrained")
    axes = figure.subplots()
    rates = [row["tokens_per_s"] for row in rows]
    whiskers = [[row["tokens_per_s"] - row["quartiles"][0], row["quartiles"][1] - row["tokens_per_s"]] for row in rows]
    colours = ["#767676" if name in (*PLAIN, LLAMA_CPP) else "#0072B2" for name in names]
    axes.barh(names, rates, xerr=np.array(whiskers).T, color=colours, ecolor="#1A1A1A", capsize=3)
    axes.set_xlabel(f"tokens a second while decoding (median and quartiles of {result['prompts']} texts)")
    figure.savefig(path, dpi=100)
