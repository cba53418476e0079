"""Linux only: put a fast BLAS in place before mlx is imported."""

from __future__ import annotations

import ctypes
import ctypes.util
import sys
from dataclasses import dataclass
from pathlib import Path

GFORTRAN_CURE = "install libgfortran5 (Debian, Ubuntu: apt-get install libgfortran5)"
_OPENBLAS = "cmeel.prefix/lib/libopenblas.so.0"
_state: Blas | None = None


@dataclass(frozen=True)
class Blas:
    """The BLAS that mlx will use: its name, its file, and what is wrong with it (None: nothing)."""

    name: str
    path: str | None = None
    problem: str | None = None


def load() -> Blas:
    """Load OpenBLAS so that mlx's own (reference, ~3 GFLOP/s) BLAS is shadowed by it.

    Call it before the first ``import mlx.core``; later calls return the first one's answer.
    Never raises: where no fast BLAS can be had, ``problem`` says why and what cures it.
    """
    global _state
    if _state is None:
        _state = _load()
    return _state


def _load() -> Blas:
    if sys.platform != "linux":
        return Blas("Accelerate" if sys.platform == "darwin" else "mlx's own")
    path = next((p for p in (Path(d) / _OPENBLAS for d in sys.path) if p.is_file()), None)
    if path is None:
        return Blas("reference", None, "no OpenBLAS found, decoding will be slow: pip install cmeel-openblas")
    if "mlx.core" in sys.modules:
        return Blas("reference", None, "mlx was imported before mtp_mlx.blas.load(), decoding will be slow: load first")
    try:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        cure = GFORTRAN_CURE if "gfortran" in str(error) else "reinstall cmeel-openblas"
        return Blas("reference", str(path), f"OpenBLAS did not load ({error}), decoding will be slow: {cure}")
    return Blas("OpenBLAS", str(path))


def threads() -> int | None:
    """How many threads OpenBLAS uses, None where it is not loaded."""
    blas = load()
    if blas.name != "OpenBLAS":
        return None
    return int(ctypes.CDLL(blas.path).openblas_get_num_threads())
