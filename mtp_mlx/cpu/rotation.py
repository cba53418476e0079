"""Rotary positions as one matrix product: MLX computes them on a CPU in some twenty small steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

_pass: object | None = None  # what tells one pass from the next


@contextmanager
def one_pass() -> Iterator[None]:
    """Within the block, an array of offsets stays as it is; mlx-lm's caches for batches count theirs up in place."""
    global _pass
    before, _pass = _pass, object()
    try:
        yield
    finally:
        _pass = before


class Rotation(nn.RoPE):
    """RoPE, where every position has a rotation matrix, made once for all queries and keys of a pass.

    The matrices of the last pass are kept, so all layers of a model can share one Rotation. An array of offsets, one
    for each text, goes the way of MLX where nothing says that it will not change; see ``one_pass``.

    Source: RoFormer (arXiv:2104.09864), equation 15.
    """

    def __init__(self, rope: nn.RoPE):
        super().__init__(rope.dims, rope.traditional, rope.base, rope.scale)
        half, i = rope.dims // 2, np.arange(rope.dims)
        pair, first = (i // 2, i % 2 == 0) if rope.traditional else (i % half, i < half)
        partner = i ^ 1 if rope.traditional else (i + half) % rope.dims
        turn = np.zeros((rope.dims, rope.dims), np.float32)
        turn[partner, i] = np.where(first, -1, 1)  # x @ turn is x turned by a right angle, pair by pair
        frequencies = mx.exp(mx.arange(0, -half, -1, dtype=mx.float32) * (math.log(rope.base) / half))  # as MLX's
        self._frequencies = frequencies[mx.array(pair)] * rope.scale  # (dims,) radians a position
        self._turn, self._stay = mx.array(turn), mx.eye(rope.dims)
        mx.eval(self._frequencies, self._turn, self._stay)
        self._kept: tuple[Any, mx.array, Any] | None = None  # what for, the matrices, and the offset

    def __call__(self, x: mx.array, offset: Any = 0) -> mx.array:
        """(batch, heads, rows, dims) of rows that follow one another → the same, rotated.

        ``offset``: the position of the first row, or an array of one for each text, (batch,).
        """
        one = isinstance(offset, int)
        if x.ndim != 4 or x.shape[-1] != self.dims or not (one or _pass):
            return super().__call__(x, offset=offset)
        # The array is kept too, so that no other one can have its id.
        key = (offset if one else (_pass, id(offset)), x.shape[2], x.dtype)
        if self._kept is None or self._kept[0] != key:
            self._kept = key, self._matrices(mx.array(offset), x.shape[2]).astype(x.dtype), offset
        return (x.swapaxes(1, 2) @ self._kept[1]).swapaxes(1, 2)

    def _matrices(self, offset: mx.array, rows: int) -> mx.array:
        """(...) offsets → (..., rows, dims, dims)."""
        positions = offset[..., None] + mx.arange(rows)
        angles = (positions[..., None] * self._frequencies)[..., None, :]  # (..., rows, 1, dims)
        return mx.cos(angles) * self._stay + mx.sin(angles) * self._turn
