"""Products of few rows with a weight matrix, in the form that OpenBLAS computes fastest on a CPU with AVX-512."""

from __future__ import annotations

from functools import lru_cache

import mlx.core as mx
import mlx.nn as nn

from mtp_mlx import blas

FEW = 16  # rows: a pass over one text has no more, nor one of two rows for each of eight
TALL = 4096  # outputs of a weight matrix that is multiplied as it stands, but for one row
# OpenBLAS makes a copy of a matrix first, which takes longer than a product with few rows; but not of one that has at
# most a million weights and 1,200 outputs (kernel/x86_64/sgemm_small_kernel_permit_skylakex.c). Smaller was faster yet.
PIECE_OUTPUTS, PIECE_NUMBERS = 1024, 450_000
LEAST = 32  # outputs of a piece that is worth a call


class Linear(nn.Linear):
    """A linear layer by ``product``."""

    @classmethod
    def of(cls, linear: nn.Linear) -> Linear:
        """The same layer: the arrays of the other one."""
        made = cls(1, 1, bias=False)
        made.weight = linear.weight
        if "bias" in linear:
            made.bias = linear.bias
        return made

    def __call__(self, x: mx.array) -> mx.array:
        y = product(x, self.weight)
        return y + self.bias if "bias" in self else y


def product(x: mx.array, weight: mx.array) -> mx.array:
    """x @ weight.T: (..., inputs), (outputs, inputs) → (..., outputs).

    How that is computed depends on the shapes alone. On two cores of a Xeon, a matrix of 1,536 · 576 took 0.15 ms
    instead of 0.26 with one row, 0.29 instead of 0.32 with eight; one of 576 · 1,536 took 0.14 instead of 0.18, and
    0.23 instead of 0.29.
    """
    outputs, inputs = weight.shape
    rows = x.size // inputs
    if blas.small_kernels() and rows == 1 and (size := piece(outputs, inputs)):
        y = x.reshape(1, 1, inputs) @ weight.reshape(-1, size, inputs).swapaxes(1, 2)  # (pieces, 1, size)
    elif blas.small_kernels() and rows <= FEW and outputs < TALL:
        y = (weight @ x.reshape(rows, inputs).T).T  # (rows, outputs)
    else:
        return x @ weight.T
    return y.reshape(*x.shape[:-1], outputs)


@lru_cache(maxsize=1024)  # asked for every product of a pass
def piece(outputs: int, inputs: int) -> int:
    """Into how many rows to cut a weight matrix so that each piece is multiplied where it lies; 0: there is no way."""
    most = min(PIECE_OUTPUTS, PIECE_NUMBERS // inputs, outputs)
    return next((size for size in range(most, LEAST - 1, -1) if outputs % size == 0), 0)
