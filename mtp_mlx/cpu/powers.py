"""Exponentials as powers: MLX computes those several times faster on a Linux CPU."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.base import scaled_dot_product_attention


@contextmanager
def instead(model: Any) -> Iterator[None]:
    """Within the block, an mlx-lm model's attention and SwiGLU take powers, where that is the faster way.

    A pass over many rows spends a third of its time in exponentials on a Linux CPU: MLX's ``exp`` has no vector code
    there and takes some 27 ns for each number, a power of e 8. They differ in the last bits, so all passes take
    either the one or the other. Elsewhere nothing changes.
    """
    names: dict[str, Any] = vars(sys.modules[type(model).__module__])  # where mlx-lm's models find these functions
    ours = {"scaled_dot_product_attention": attention, "swiglu": swiglu} if on_linux_cpu() else {}
    before = {name: names[name] for name in ours if name in names}
    names.update({name: ours[name] for name in before})
    try:
        yield
    finally:
        names.update(before)


def on_linux_cpu() -> bool:
    """Whether MLX computes on a CPU, and not with Apple's libraries."""
    return sys.platform == "linux" and mx.default_device() == mx.Device(mx.cpu)


def gated(gate: mx.array, x: mx.array) -> mx.array:
    """silu(gate) · x, the way that is faster here."""
    return swiglu(gate, x) if on_linux_cpu() else nn.silu(gate) * x


def exp(x: mx.array) -> mx.array:
    """e to the power of each, the way that is faster here."""
    return mx.power(math.e, x) if on_linux_cpu() else mx.exp(x)


def attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    cache: Any,
    scale: float,
    mask: mx.array | None,
    sinks: mx.array | None = None,
) -> mx.array:
    """Softmax attention with the arguments of mlx-lm's own, which has the masks that are none of ours.

    Queries that share keys are multiplied together.

    queries (batch, heads, rows, dim), keys and values (batch, kv_heads, n, dim), mask (..., rows, n) bool
    → (batch, heads, rows, dim).
    """
    plain = mask is None or (isinstance(mask, mx.array) and mask.dtype == mx.bool_ and mask.shape[-3:-2] in ((), (1,)))
    if sinks is not None or not plain:
        return scaled_dot_product_attention(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)
    batch, heads, rows, dim = queries.shape
    groups, n = keys.shape[1], keys.shape[2]
    scores = (scale * queries).reshape(batch, groups, -1, dim) @ keys.swapaxes(-1, -2)
    scores = scores.reshape(batch, groups, heads // groups, rows, n)
    if mask is not None:  # added: a choice for each score takes longer; half of the lowest, so that no sum is infinite
        hidden = mx.where(mask if mask.ndim < 4 else mask[:, :, None], 0.0, mx.finfo(scores.dtype).min / 2)
        scores = scores + hidden.astype(scores.dtype)
    shares = mx.power(math.e, scores - scores.max(axis=-1, keepdims=True))
    out = shares.reshape(batch, groups, -1, n) @ values
    return out.reshape(batch, heads, rows, dim) / shares.sum(axis=-1).reshape(batch, heads, rows, 1)


def swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """silu(gate) · x."""
    return gate * x / (1 + mx.power(math.e, -gate))
