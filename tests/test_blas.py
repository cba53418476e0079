"""OpenBLAS in front of mlx's own BLAS: it is the one that computes, and what is said where it cannot be."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mtp_mlx import blas

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = "cmeel.prefix/lib/libopenblas.so.0"

linux = pytest.mark.skipif(sys.platform != "linux", reason="OpenBLAS is for Linux only")


def python(code: str, **environment: str) -> str:
    """What a fresh interpreter prints."""
    run = [sys.executable, "-c", code]
    return subprocess.run(
        run, cwd=ROOT, env=os.environ | environment, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As on a Linux machine before any import of mlx, with nothing installed but what the test puts into a folder."""
    monkeypatch.setattr(blas, "_state", None)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "mlx.core")
    return tmp_path


def install(folder: Path) -> Path:
    """A file in OpenBLAS's place that no linker accepts."""
    library = folder / LIBRARY
    library.parent.mkdir(parents=True)
    library.write_bytes(b"not a library")
    return library


def problem() -> str:
    """What the first call says; it must be one line, and say that decoding is slow."""
    found = blas.load()
    assert found.name == "reference"
    assert found.problem is not None
    assert "\n" not in found.problem
    assert "slow" in found.problem
    return found.problem


@linux
def test_openblas_is_loaded_for_these_tests():
    assert blas.load().name == "OpenBLAS"
    assert blas.load().problem is None


@linux
def test_mlx_computes_with_openblas():
    """The same bits as a direct call; mlx's own BLAS rounds otherwise."""
    a, b = np.random.default_rng(0).standard_normal((2, 512, 512), dtype=np.float32)
    direct = np.zeros((512, 512), np.float32)
    pa, pb, pc = (x.ctypes.data_as(ctypes.c_void_p) for x in (a, b, direct))
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    ctypes.CDLL(blas.load().path).cblas_sgemm(101, 111, 111, 512, 512, 512, one, pa, 512, pb, 512, zero, pc, 512)
    np.testing.assert_allclose(direct, a.astype(np.float64) @ b.astype(np.float64), atol=1e-3)
    with mx.stream(mx.cpu):
        product = np.array(mx.array(a) @ mx.array(b))
    np.testing.assert_array_equal(product, direct)


@linux
def test_threads_are_between_one_and_the_machine_s():
    assert 1 <= (blas.threads() or 0) <= (os.cpu_count() or 1)


@linux
@pytest.mark.parametrize("count", [1, 2])
def test_the_user_s_thread_count_is_obeyed(count: int):
    if count > (os.cpu_count() or 1):
        pytest.skip("not enough cores")
    assert python("from mtp_mlx import blas; print(blas.threads())", OPENBLAS_NUM_THREADS=str(count)) == str(count)


def test_the_first_answer_stays():
    assert blas.load() is blas.load()


@linux
def test_mlx_imported_first():
    said = python("import mlx.core; from mtp_mlx import blas; print(blas.load(), blas.threads())")
    assert "reference" in said
    assert "mlx was imported before" in said
    assert said.endswith("None")


def test_no_openblas_installed(fresh: Path):
    assert "pip install cmeel-openblas" in problem()
    assert blas.threads() is None


def test_libgfortran_missing(fresh: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*args, **options):
        raise OSError("libgfortran.so.5: cannot open shared object file: No such file or directory")

    library = install(fresh)
    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert "apt-get install libgfortran5" in problem()
    assert blas.load().path == str(library)
    assert blas.threads() is None


def test_a_damaged_library(fresh: Path):
    install(fresh)
    assert "reinstall cmeel-openblas" in problem()


def test_a_mac_needs_nothing(fresh: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert blas.load() == blas.Blas("Accelerate")
    assert blas.threads() is None
