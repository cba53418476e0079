"""A fast BLAS in front of mlx's own: it is the one that computes, with the threads that suit, or it says why not."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mtp_mlx import blas

ROOT = Path(__file__).resolve().parent.parent
MKL, OPENBLAS = blas.LIBRARIES
ANY_THREADS = {"OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"}

linux = pytest.mark.skipif(sys.platform != "linux", reason="OpenBLAS is for Linux only")


def python(code: str, **environment: str) -> str:
    """What a fresh interpreter prints, with no other number of threads asked for than ``environment``'s."""
    run = [sys.executable, "-c", code]
    rest = {name: value for name, value in os.environ.items() if name not in ANY_THREADS}
    return subprocess.run(
        run, cwd=ROOT, env=rest | environment, check=True, capture_output=True, text=True
    ).stdout.strip()


def installed(library: blas.Library) -> bool:
    try:
        return bool(distribution(library.package))
    except PackageNotFoundError:
        return False


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As on a Linux machine before any import of mlx, with nothing installed but what the test puts into a folder."""
    monkeypatch.setattr(blas, "_state", None)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "mlx.core")
    return tmp_path


def install(library: blas.Library, folder: Path) -> Path:
    """A package with a file in the library's place that no linker accepts."""
    info = folder / f"{library.package.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {library.package}\nVersion: 1.0\n", encoding="utf-8")
    name = f"lib/{library.file.replace('*', '.3')}"
    (info / "RECORD").write_text(f"lib/other.so,,\n{name},,\n", encoding="utf-8")
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"not a library")
    return path


def problem() -> str:
    """What the first call says; it must be one line, and say that decoding is slow."""
    found = blas.load()
    assert found.name == "reference"
    assert found.threads is None
    assert found.problem is not None
    assert "\n" not in found.problem
    assert "slow" in found.problem
    return found.problem


@linux
def test_a_fast_blas_is_loaded_for_these_tests():
    """MKL where somebody installed it."""
    assert blas.load().name == ("MKL" if installed(MKL) else "OpenBLAS")
    assert blas.load().problem is None


@linux
def test_mlx_computes_with_it():
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
def test_openblas_is_used_where_there_is_no_mkl():
    code = "from mtp_mlx import blas; blas.LIBRARIES = blas.LIBRARIES[1:]; print(blas.load())"
    assert "name='OpenBLAS'" in python(code)


@linux
@pytest.mark.parametrize("library", blas.LIBRARIES, ids=lambda library: library.name)
@pytest.mark.parametrize("count", [1, 2])
def test_the_user_s_thread_count_is_obeyed(library: blas.Library, count: int):
    if not installed(library):
        pytest.skip(f"{library.name} is not installed")
    if count > blas.cores():
        pytest.skip("not enough cores")
    for name in library.variables:
        code = (
            f"from mtp_mlx import blas; blas.LIBRARIES = [b for b in blas.LIBRARIES if b.name == {library.name!r}]; "
            "print(blas.load().threads, blas.load().why)"
        )
        assert python(code, **{name: str(count)}) == f"{count} {name}={count}"


@linux
@pytest.mark.parametrize("library", blas.LIBRARIES, ids=lambda library: library.name)
def test_threads_are_chosen_by_a_timing(library: blas.Library):
    """Of the real library, in a process of its own; an empty variable says nothing."""
    if not installed(library):
        pytest.skip(f"{library.name} is not installed")
    code = f"""
from mtp_mlx import blas
blas.LIBRARIES = [b for b in blas.LIBRARIES if b.name == {library.name!r}]
timings = []
time_threads = blas.time_threads
blas.time_threads = lambda *options: timings.append(time_threads(*options)) or timings[-1]
print(blas.load().threads)
print(*(f"{{count}} {{seconds}}" for count, seconds in timings[0].items()), sep=chr(10))
"""
    if blas.cores() == 1:
        pytest.skip("one core: nothing to choose")
    chosen, *lines = python(code, OMP_NUM_THREADS="").splitlines()
    timings = {int(count): float(seconds) for count, seconds in map(str.split, lines)}
    assert list(timings)[:2] == [1, 2]
    assert int(chosen) in timings
    assert timings[int(chosen)] <= min(timings.values()) * blas.GAIN
    assert all(0 < seconds < 1 for seconds in timings.values())


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int, list[float]], int], tuple[int, dict[int, float]]]:
    """``time_threads`` of a call that takes so long, in turn, with so many threads: (the number set last, timings)."""

    def run(durations: dict[int, list[float]], most: int) -> tuple[int, dict[int, float]]:
        now, threads = 0.0, 0
        turns = {count: itertools.cycle(seconds) for count, seconds in durations.items()}

        def set_threads(count: int) -> None:
            nonlocal threads
            threads = count

        def call() -> None:
            nonlocal now
            now += next(turns[threads])

        monkeypatch.setattr(blas, "perf_counter", lambda: now)
        timings = blas.time_threads(call, set_threads, most)
        assert now < 0.1
        return threads, timings

    return run


@pytest.mark.parametrize(
    ("milliseconds", "most", "wanted"),
    [
        ({1: 0.8, 2: 0.5}, 2, 2),
        ({1: 0.5, 2: 5.0}, 2, 1),
        ({1: 0.5, 2: 40.0}, 2, 1),
        ({1: 0.5, 2: 0.48}, 2, 1),  # as fast: the fewer
        ({1: 1.6, 2: 0.8, 4: 0.4, 6: 0.3}, 6, 6),
        ({1: 1.6, 2: 0.8, 4: 0.4, 8: 0.5, 16: 0.1}, 16, 4),  # 16 are not tried
    ],
)
def test_more_threads_are_taken_as_long_as_they_are_faster(choose, milliseconds, most, wanted):
    count, timings = choose({count: [value / 1000] for count, value in milliseconds.items()}, most)
    assert count == wanted
    assert timings == pytest.approx({n: value / 1000 for n, value in milliseconds.items() if n <= 2 * wanted})


def test_fast_calls_do_not_hide_the_slow_ones(choose):
    """With another process on a core, most products are faster with two threads, and some take many times as long."""
    count, timings = choose({1: [0.001], 2: [0.0005, 0.0005, 0.0005, 0.004]}, 2)
    assert count == 1
    assert timings[2] > timings[1]


@pytest.mark.parametrize(
    ("files", "most"),
    [
        ({}, None),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "100000 100000\n"}, 1),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "99900000 100000\n"}, None),
        ({"cpu.max": "?"}, None),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
    ],
)
def test_a_container_s_share_of_time_limits_the_cores(files: dict[str, str], most: int | None, tmp_path: Path):
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert blas.cores(tmp_path) == (most or blas.cores(tmp_path / "none"))


@linux
def test_a_process_on_one_core_takes_one_thread():
    pin = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    said = python(f"{pin}; from mtp_mlx import blas; print(blas.load())")
    assert "threads=1" in said
    assert "one core" in said


def test_the_first_answer_stays():
    assert blas.load() is blas.load()


@linux
def test_mlx_imported_first():
    said = python("import mlx.core; from mtp_mlx import blas; print(blas.load())")
    assert "reference" in said
    assert "before mlx is imported" in said


def test_no_openblas_installed(fresh: Path):
    assert "pip install cmeel-openblas" in problem()


def test_libgfortran_missing(fresh: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*args, **options):
        raise OSError("libgfortran.so.5: cannot open shared object file: No such file or directory")

    install(OPENBLAS, fresh)
    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert "apt-get install libgfortran5" in problem()


def test_damaged_libraries(fresh: Path):
    files = [install(library, fresh) for library in blas.LIBRARIES]
    said = problem()
    assert all(f"reinstall {library.package}" in said for library in blas.LIBRARIES)
    assert all(str(file) in said for file in files)


@linux
def test_without_a_sound_mkl_openblas_is_used_and_says_so(fresh: Path):
    file = install(MKL, fresh)
    code = f"import sys; sys.path.insert(0, {str(fresh)!r}); from mtp_mlx import blas; print(blas.load())"
    said = python(code)
    assert "name='OpenBLAS'" in said
    assert "problem=None" in said
    assert str(file) in said
    assert "reinstall mkl" in said


def test_a_mac_needs_nothing(fresh: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert blas.load() == blas.Blas("Accelerate")
