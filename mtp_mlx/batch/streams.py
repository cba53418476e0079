"""Files by their names: plain, .gz or .zst, read and written as streams of bytes."""

from __future__ import annotations

import gzip
import importlib
import io
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO

LONGEST = 1 << 25  # bytes of a line; what is longer is an error of its row, so that no line fills the memory


class BatchError(ValueError):
    """A batch cannot begin or go on; the message is one line and says what to do."""


@contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, decompressed as its name says.

    Raises:
        BatchError: it cannot be opened, or, in the middle of it, read on.
    """
    try:
        with path.open("rb") as raw, _decompressed(raw, path.suffix) as file:
            yield file
    except (EOFError, OSError, *_faults(path.suffix)) as error:
        what = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise BatchError(f"cannot read {path} ({what}): get the file again") from error


@contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """A new file, compressed as its name says, on the disk when the block ends; the same bytes every time."""
    with path.open("wb") as raw:
        with _compressed(raw, path.suffix) as file:
            yield file
        raw.flush()
        os.fsync(raw.fileno())


def check(path: Path) -> None:
    """Raise BatchError if a file of this name cannot be compressed here."""
    if path.suffix == ".zst":
        _zstd()


def check_again(path: Path) -> None:
    """Raise BatchError if what has this name, such as a pipe, can be read only once; whatever else reading it tells."""
    with suppress(OSError):
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise BatchError(
                f"{path} is no file that can be read more than once: give - as INPUT and pipe it in, with --format "
                "csv or jsonl where it is no plain text"
            )


def lines(file: BinaryIO) -> Iterator[bytes]:
    """Each line with its end (LF or CRLF), without a byte order mark; cut off behind LONGEST bytes."""
    mark = b"\xef\xbb\xbf"
    while line := file.readline(LONGEST + 1):
        rest = line
        while not rest.endswith(b"\n") and (rest := file.readline(LONGEST)):
            pass
        yield line.removeprefix(mark)
        mark = b""


def sync(folder: Path) -> None:
    """Put the names in a folder on the disk: what was created, renamed or linked in it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _decompressed(raw: BinaryIO, suffix: str) -> Any:
    if suffix == ".gz":
        return gzip.GzipFile(fileobj=raw)
    return _zstd().open(raw) if suffix == ".zst" else nullcontext(raw)


def _compressed(raw: BinaryIO, suffix: str) -> Any:
    if suffix == ".gz":  # without a name and a time in its header
        return io.BufferedWriter(gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0), 1 << 16)
    if suffix == ".zst":
        return _zstd().open(raw, "wb", options={_zstd().CompressionParameter.checksum_flag: 1})
    return nullcontext(raw)


def _faults(suffix: str) -> tuple[type[Exception], ...]:
    """What a damaged file raises besides OSError and EOFError."""
    return (_zstd().ZstdError,) if suffix == ".zst" else (zlib.error,)


def _zstd() -> Any:
    """Python's own module since 3.14, before that its backport."""
    try:
        return importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    except ImportError as error:
        raise BatchError("reading and writing .zst needs one more package: pip install backports.zstd") from error
