"""What a pass and a draft step cost on the machine at hand, measured in about a second, and what width pays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from time import perf_counter

import mlx.core as mx

from mtp_mlx.backbone import Backbone
from mtp_mlx.drafters.base import Context, Drafter

WIDTHS = (1, 2, 3, 4, 5, 6, 8)
CONTEXT = 192  # committed tokens while measuring
STEPS = 4  # of the draft that is timed
DRAFT = 0  # among the widths that are timed
BETTER = 1.05  # how much faster than the usual width another one must promise to be


@dataclass(frozen=True)
class Costs:
    """Seconds of one pass by its width, and of one draft step."""

    passes: Mapping[int, float]
    step: float

    def rate(self, chances: Sequence[float], *, width: int, length: int) -> float:
        """Tokens a second that drafts of ``length`` can be expected to commit in passes of ``width`` rows.

        Args:
            chances: for each draft position the chance of being accepted, given that those before it are.
        """
        tokens = 1 + sum(accumulate(chances[:length], mul))
        return tokens / (self.passes[width] + length * self.step)

    def best_length(self, chances: Sequence[float], *, width: int, most: int) -> int:
        """The draft length, 0 to ``most``, that commits most tokens a second; the shorter where two are equal."""
        return max(range(most + 1), key=lambda length: self.rate(chances, width=width, length=length))

    def best_width(self, chances: Sequence[float], *, usual: int) -> int:
        """``usual``, unless another of the measured widths promises to be ``BETTER`` times as fast.

        One row is plain decode. Texts of two widths can differ in near-ties, so a width that is hardly faster is not
        worth a text that depends on a timing; but no width is kept that promises less than plain decode.
        """

        def promised(width: int) -> float:
            return self.rate(chances, width=width, length=self.best_length(chances, width=width, most=width - 1))

        best = max(self.passes, key=promised)
        kept = max(promised(best) / BETTER, promised(1) if 1 in self.passes else 0.0)
        return usual if promised(usual) >= kept else best


def measure(
    backbone: Backbone,
    drafter: Drafter,
    *,
    widths: Sequence[int] = WIDTHS,
    context: int = CONTEXT,
    seconds: float = 1.0,
) -> Costs:
    """Time passes of each width and drafts, in turns, until the seconds are over; at least once each.

    Args:
        context: how many committed tokens the KV cache holds; they are zeros, and nothing is prefilled.
    """
    kv = backbone.make_kv(context + max(widths))
    mx.eval(backbone.forward([0], kv, width=max(widths)).logits)  # makes the buffers, and warms up
    kv.commit(context)
    hidden = mx.zeros((1, backbone.args.hidden_size), backbone.dtype)
    text = Context([0] * (context + 1), kv, hidden, context + 1)
    drafter.start(text)
    ways: dict[int, Callable[[], object]] = {DRAFT: lambda: drafter.draft(text, STEPS)}
    ways |= {width: lambda width=width: mx.eval(backbone.forward([0], kv, width=width).logits) for width in widths}

    for way in ways if backbone.compiled else [DRAFT]:
        ways[way]()  # is compiled, or reads its weights for the first time

    def turns() -> Iterator[Iterable[int]]:
        end = perf_counter() + seconds
        yield ways
        while perf_counter() < end:
            yield ways

    best = fastest(ways, turns())
    return Costs({width: best[width] for width in widths}, best[DRAFT] / STEPS)


def fastest(ways: Mapping[int, Callable[[], object]], turns: Iterable[Iterable[int]]) -> dict[int, float]:
    """The fewest seconds that each way took, some of them in each turn: what else the machine does only adds time."""
    best = dict.fromkeys(ways, float("inf"))
    for turn in turns:
        for way in turn:
            started = perf_counter()
            ways[way]()
            best[way] = min(best[way], perf_counter() - started)
    return best
