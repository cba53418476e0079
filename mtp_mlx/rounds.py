"""What a round of several texts costs at each width, measured, and the width that pays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul

import mlx.core as mx

from mtp_mlx.backbone import Backbone
from mtp_mlx.batched import forward
from mtp_mlx.costs import DRAFT, Costs, fastest
from mtp_mlx.drafters.together import Text, Together
from mtp_mlx.slots import Slots

WIDTHS = (1, 2, 3, 4, 5, 6, 8)
CAPACITY = 192  # rows of KV cache for each text while measuring: those of a short message
STEPS = 2  # of the draft that is timed
NARROW = 5  # rows that are likely to pay where many texts share a pass
CLOSE = 1.1  # how much more a wider pass must promise, as a timing may be off by so much


def measure(
    backbone: Backbone,
    drafters: Together,
    *,
    size: int,
    widths: Sequence[int] = WIDTHS,
    capacity: int = CAPACITY,
    turns: int = 5,
) -> Costs:
    """Time passes of each width and drafts over ``size`` texts, in turns.

    The widest passes, which take longest and pay last, are timed only twice.
    """
    kv = Slots(len(backbone.model.layers), size=size, capacity=capacity)
    mx.eval(forward(backbone, [[0]] * size, kv, width=max(widths)))  # makes the buffers, and warms up
    kv.lengths = [capacity // 2] * size
    hidden = mx.zeros(backbone.args.hidden_size, backbone.dtype)
    texts = [Text(slot, [0] * (capacity // 2 + 1), STEPS + 1, hidden) for slot in range(size)]
    for slot, text in enumerate(texts):
        drafters.start(slot, text)
    ways: dict[int, Callable[[], object]] = {DRAFT: lambda: drafters.draft(texts, kv, STEPS)}
    ways |= {width: lambda width=width: mx.eval(forward(backbone, [[0]] * size, kv, width=width)) for width in widths}
    best = fastest(ways, ([way for way in ways if turn < 2 or way <= NARROW] for turn in range(turns)))
    return Costs({width: best[width] for width in widths}, best[DRAFT] / STEPS)


def best_width(costs: Costs, chances: Sequence[float]) -> int:
    """The narrowest width at which whole drafts commit about as many tokens a second as at any.

    One row, which is plain decode, where no drafts pay.
    """
    rates = {width: costs.rate(chances, width=width, length=width - 1) for width in costs.passes}
    return min(width for width, rate in rates.items() if CLOSE * rate >= max(rates.values()))


def corrected(chances: Sequence[float], *, length: int, additional: float) -> list[float]:
    """The chances of draft positions, all of them by one factor, so that drafts of ``length`` bring what was seen.

    Args:
        additional: how many of a draft's tokens were accepted, on average.
    """
    low, high = 0.0, 1 / max(min(chances), 1e-6)
    for _ in range(50):
        factor = (low + high) / 2
        if sum(accumulate((min(1.0, factor * chance) for chance in chances[:length]), mul)) < additional:
            low = factor
        else:
            high = factor
    return [min(1.0, high * chance) for chance in chances]
