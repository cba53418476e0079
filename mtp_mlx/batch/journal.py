"""What is done: an append-only file of results for each process, whole up to the moment that the power went."""

from __future__ import annotations

import fcntl
import json
import os
from array import array
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO

from mtp_mlx.batch.streams import BatchError, sync

SYNC_SECONDS = 1.0  # the most work that a power cut takes; a killed process loses nothing that it has written
ROWS = "rows-*.jsonl"  # the names of the files
SHIFT = 48  # bits of a place in a file; the file's number stands above them


class Journal:
    """Results by the number of their row, in files named ``rows-N.jsonl``, of which this process writes one.

    In memory is only where each result stands: 12 bytes a row. Lines are ``{"row", "check", "result"}``; whatever
    follows the last whole line of a file is left from an interrupted write, and cut off or not read.

    Args:
        rank: the number of the process, and of the file that it appends to; None: only read.

    Raises:
        BatchError: another process is at work on it.
    """

    def __init__(self, folder: Path, *, rank: int | None = 0):
        self._places = array("q")  # (rows,): -1, or the file's number << SHIFT | where its line begins
        self._checks = array("I")  # (rows,): what the row was when it was done
        self._files: list[BinaryIO] = []
        self.done = 0
        self._own: BinaryIO | None = None
        own = None if rank is None else folder / f"rows-{rank}.jsonl"
        if own is not None:
            self._own = own.open("ab", buffering=0)
            try:
                fcntl.flock(self._own, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise BatchError(f"another run is at work on {folder}: wait for it, or end it first") from error
        for path in sorted(folder.glob(ROWS)):
            whole = self._read(path)
            if path == own:
                self._number, self._end = len(self._files) - 1, whole
                self._own.truncate(whole)  # type: ignore[union-attr]
        sync(folder)
        self._synced = monotonic()

    def has(self, row: int, check: int) -> bool:
        """Whether this row, and not another one in its place, is done."""
        return row < len(self._places) and self._places[row] >= 0 and self._checks[row] == check

    def result(self, row: int) -> dict[str, Any]:
        """The result of a row that is done."""
        file = self._files[self._places[row] >> SHIFT]
        file.seek(self._places[row] & ((1 << SHIFT) - 1))
        return json.loads(file.readline())["result"]

    def add(self, row: int, check: int, result: Mapping[str, Any]) -> None:
        """Record a result.

        Raises:
            BatchError: it cannot be written; what was recorded before is whole.
        """
        line = json.dumps({"row": row, "check": check, "result": result}, ensure_ascii=False).encode() + b"\n"
        left = memoryview(line)
        assert self._own is not None
        try:
            while left:
                left = left[self._own.write(left) :]
            if monotonic() - self._synced > SYNC_SECONDS:
                self.sync()
        except OSError as error:
            raise BatchError(
                f"cannot write {self._own.name} ({error.strerror}): make room and run the same command again; "
                f"rows kept: {self.done:,}"
            ) from error
        self._index(row, check, self._number, self._end)
        self._end += len(line)

    def sync(self) -> None:
        """Put what is recorded on the disk."""
        if self._own is not None:
            os.fsync(self._own.fileno())
        self._synced = monotonic()

    def close(self) -> None:
        for file in filter(None, [*self._files, self._own]):
            file.close()

    def _read(self, path: Path) -> int:
        """Take in a file up to its last whole line; return where that ends."""
        file = path.open("rb")
        self._files.append(file)
        end = 0
        for line in file:
            try:
                entry = json.loads(line if line.endswith(b"\n") else b"")
                self._index(entry["row"], entry["check"], len(self._files) - 1, end)
            except (ValueError, KeyError, TypeError):
                break
            end += len(line)
        return end

    def _index(self, row: int, check: int, file: int, place: int) -> None:
        missing = row + 1 - len(self._places)
        if missing > 0:
            self._places.extend(array("q", [-1]) * missing)
            self._checks.extend(array("I", [0]) * missing)
        self.done += self._places[row] < 0
        self._places[row], self._checks[row] = file << SHIFT | place, check
