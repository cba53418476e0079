"""Linux only: put a fast BLAS in place before mlx is imported, with as many threads as are fastest here."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

GFORTRAN_CURE = "install libgfortran5 (Debian, Ubuntu: apt-get install libgfortran5)"
BUDGET = 0.05  # seconds that the timing may take at the start of a process
GAIN = 1.1  # what more threads must bring
AVX_512 = ("SKYLAKEX", "COOPERLAKE", "SAPPHIRERAPIDS")  # OpenBLAS's names of such CPUs; AMD's are the first two
_state: Blas | None = None


@dataclass(frozen=True)
class Library:
    """A BLAS that can stand in front of mlx's own: the package that brings it, and how its threads are counted."""

    name: str
    package: str
    file: str
    set_threads: str
    get_threads: str
    core: str | None  # the function that names the kind of CPU it computes for
    variables: tuple[str, ...]  # which the library reads itself


# The first that loads is used. mtp-mlx brings OpenBLAS; MKL is there when the user installed it.
LIBRARIES = (
    Library(
        "MKL",
        "mkl",
        "libmkl_rt.so*",
        "MKL_Set_Num_Threads",
        "MKL_Get_Max_Threads",
        None,
        ("MKL_NUM_THREADS", "OMP_NUM_THREADS"),
    ),
    Library(
        "OpenBLAS",
        "cmeel-openblas",
        "libopenblas.so.0",
        "openblas_set_num_threads",
        "openblas_get_num_threads",
        "openblas_get_corename",
        ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"),
    ),
)


@dataclass(frozen=True)
class Blas:
    """The BLAS that mlx will use.

    Attributes:
        path: its file, None for one that was not loaded here.
        problem: why it is slow and what cures that, None where it is not.
        threads: how many it uses, None for one that was not loaded here.
        why: how that was chosen, and why no better library was.
        core: the kind of CPU that its kernels are for, where it tells.
    """

    name: str
    path: str | None = None
    problem: str | None = None
    threads: int | None = None
    why: str = ""
    core: str = ""


def load() -> Blas:
    """Load MKL or OpenBLAS so that mlx's own (reference, ~3 GFLOP/s) BLAS is shadowed by it.

    Call it before the first ``import mlx.core``; later calls return the first one's answer. The choice holds for the
    life of the process, and so does exactness: another library, or another number of threads, can round differently.
    Never raises: where no fast BLAS can be had, ``problem`` says why and what cures it.
    """
    global _state
    if _state is None:
        _state = _load()
    return _state


def _load() -> Blas:
    if sys.platform != "linux":
        return Blas("Accelerate" if sys.platform == "darwin" else "mlx's own")
    if "mlx.core" in sys.modules:
        return Blas("reference", problem="decoding will be slow: call mtp_mlx.blas.load() before mlx is imported")
    failed = []
    for library in LIBRARIES:
        path = _find(library)
        if path is None:
            continue
        try:
            loaded = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            cure = GFORTRAN_CURE if "gfortran" in str(error) else f"reinstall {library.package}"
            failed.append(f"{library.name} did not load ({error}): {cure}")
            continue
        why = choose_threads(library, loaded)
        threads = getattr(loaded, library.get_threads)()
        why = "; ".join([why, *failed])
        return Blas(library.name, str(path), threads=threads, why=why, core=_core(library, loaded))
    reasons = failed or ["no OpenBLAS found: pip install cmeel-openblas"]
    return Blas("reference", problem=f"decoding will be slow: {'; '.join(reasons)}")


def _find(library: Library) -> Path | None:
    """The library's file, where its package was installed to."""
    from importlib.metadata import PackageNotFoundError, files  # slow to import, and only Linux needs it

    try:
        listed = files(library.package) or ()
    except PackageNotFoundError:
        return None
    return next((Path(str(file.locate())) for file in listed if file.match(library.file)), None)


def _core(library: Library, loaded: ctypes.CDLL) -> str:
    """The kind of CPU that a library's kernels are for."""
    if library.core is None:
        return ""
    name = getattr(loaded, library.core)
    name.restype = ctypes.c_char_p
    return name().decode().upper()


def small_kernels() -> bool:
    """Whether the BLAS in use multiplies small matrices where they lie, as OpenBLAS does on CPUs with AVX-512."""
    return _state is not None and _state.core in AVX_512


def choose_threads(library: Library, loaded: ctypes.CDLL) -> str:
    """Set the number of threads, unless the user has; return why it is that."""
    for name in library.variables:
        if value := os.environ.get(name):
            return f"{name}={value}"
    set_threads = getattr(loaded, library.set_threads)
    most = cores()
    if most == 1:
        set_threads(1)
        return "one core"
    seconds = time_threads(product(loaded), set_threads, most)
    return "a product takes " + ", ".join(f"{1000 * mean:.2f} ms with {count}" for count, mean in seconds.items())


def cores(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """How many cores this process can keep busy: its affinity's, or a container's share of time (cgroup v2, v1)."""
    count = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    for names in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):
        try:
            quota, period = map(int, " ".join((groups / name).read_text() for name in names).split())
        except (OSError, ValueError):  # no such file; no limit is "max", or -1
            continue
        if quota > 0 and period > 0:
            count = min(count, max(1, quota // period))
    return count


def product(loaded: ctypes.CDLL, *, rows: int = 8, inputs: int = 576, outputs: int = 1536) -> Callable[[], object]:
    """A call of the library's float32 matrix product, by default the largest of a verify pass over a layer."""
    row_major, plain, transposed = 101, 111, 112
    number = ctypes.c_float
    x, weight, y = (number * (rows * inputs))(), (number * (outputs * inputs))(), (number * (rows * outputs))()
    for array in (x, weight):
        ctypes.memset(array, 0x3F, ctypes.sizeof(array))  # 0.75 everywhere; fresh zeros would all be one page
    shape = (row_major, plain, transposed, rows, outputs, inputs)
    return lambda: loaded.cblas_sgemm(*shape, number(1), x, inputs, weight, inputs, number(0), y, outputs)


def time_threads(
    call: Callable[[], object], set_threads: Callable[[int], object], most: int, *, budget: float = BUDGET
) -> dict[int, float]:
    """Set the number of threads with which ``call`` is fastest; double it as long as that brings something.

    The mean over several turns of the scheduler counts, not the best call: when another process holds a core, some
    calls are as fast as ever, and the others wait, spinning, for the thread that has no core.

    Args:
        most: the most threads to try.
        budget: seconds for all timings together.

    Returns:
        number of threads → mean seconds of a call, for those that were tried.
    """
    counts = [2**i for i in range(most.bit_length()) if 2**i < most] + [most]
    seconds: dict[int, float] = {}
    best = 1
    set_threads(best)
    call()  # the first one also finds the kernels and makes buffers
    for count in counts:
        set_threads(count)
        calls, started = 0, perf_counter()
        while (taken := perf_counter() - started) < budget / len(counts):
            call()
            calls += 1
        seconds[count] = taken / calls
        if count > 1 and seconds[count] * GAIN > seconds[best]:
            break
        best = count
    set_threads(best)
    return seconds
