"""Rotary positions as one matrix product: MLX computes them on a CPU in some twenty small steps."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np


class Rotation(nn.RoPE):
    """RoPE, where every position has a rotation matrix, made once for all queries and keys of a pass.

    The matrices of the last pass are kept, so all layers of a model can share one Rotation. Only those of whole
    numbers: an array of offsets, one for each text, can change in place, and goes the way of MLX.

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
        self._kept: tuple[tuple[int, int], mx.array] | None = None

    def __call__(self, x: mx.array, offset: Any = 0) -> mx.array:
        """(batch, heads, rows, dims) of rows that follow one another from position ``offset`` → the same, rotated."""
        if isinstance(offset, int) and x.shape[-1] == self.dims:
            return (x.swapaxes(1, 2) @ self._matrices(offset, x.shape[2]).astype(x.dtype)).swapaxes(1, 2)
        return super().__call__(x, offset=offset)

    def _matrices(self, offset: int, rows: int) -> mx.array:
        """(rows, dims, dims)."""
        if self._kept is None or self._kept[0] != (offset, rows):
            angles = (mx.arange(offset, offset + rows)[:, None] * self._frequencies)[:, None]  # (rows, 1, dims)
            self._kept = (offset, rows), mx.cos(angles) * self._stay + mx.sin(angles) * self._turn
        return self._kept[1]
