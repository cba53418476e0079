"""Files in, files out: a batch that goes on where it was stopped and whose output appears only whole."""

from __future__ import annotations

import fcntl
import filecmp
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from mtp_mlx.batch.journal import ROWS, Journal
from mtp_mlx.batch.rows import Row, Source, format_of, header, render
from mtp_mlx.batch.streams import BatchError, check, sync, writing

# From (row number, text) pairs to (row number, result) pairs, in any order; it may read ahead by a bounded number.
Answer = Callable[[Iterable[tuple[int, str]]], Iterable[tuple[int, Mapping[str, Any]]]]
BEGUN, DONE, SPOOLED = "job.json", "done.json", "input"  # BEGUN becomes DONE once the output is there
MEASURED = "measured"
NEW = (f"{BEGUN}.new", SPOOLED, f"{SPOOLED}.new")  # what may be there before a job has begun


def claim(output: Path) -> Path:
    """The folder beside an output for what is done of it.

    Raises:
        BatchError: something that no batch has just finished has the output's name, or the folder's name is a link.
    """
    folder, whole = _names(output)
    finished = (folder / DONE).exists()
    if os.path.lexists(output) and (finished or not (output.exists() and whole.exists() and output.samefile(whole))):
        raise BatchError(f"{output} exists already: name another OUTPUT, or move it away")
    return folder


def _names(output: Path) -> tuple[Path, Path]:
    """The folder for what is done of an output, and in it the output before it has its name."""
    if str(output) == "-" or not output.name:
        raise BatchError(f"OUTPUT is {output}, and a run that can be gone on with needs a file: name one")
    folder = output.with_name(f"{output.name}.partial")
    if not output.parent.is_dir():
        raise BatchError(f"there is no folder {output.parent}: make it first")
    if folder.is_symlink():
        raise BatchError(f"{folder} is a symbolic link, and must be a folder: name another OUTPUT, or move it away")
    return folder, folder / f"whole-{output.name}"


@contextmanager
def owned(output: Path, *, rank: int = 0) -> Iterator[None]:
    """Keep the folder of an output from other runs; of several processes the first does it for all.

    Raises:
        BatchError: another run is at work on it, or it cannot be made.
    """
    folder, _ = _names(output)
    if rank > 0:
        claim(output)
        yield
        return
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise BatchError(f"cannot make {folder} ({error.strerror}): name an OUTPUT that can be written") from error
    with _locked(folder):
        try:
            if (folder / DONE).exists():
                _clear(output)
            claim(output)
            yield
        finally:
            if not ((folder / BEGUN).exists() or (folder / DONE).exists()):
                for name in NEW:
                    (folder / name).unlink(missing_ok=True)
            with suppress(OSError):
                folder.rmdir()  # where nothing was begun


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BatchError(f"another run is at work on {folder}: wait for it, or end it first") from error
        except OSError:  # a file system that locks no folders; the journal's files are locked, too
            pass
        yield
    finally:
        os.close(descriptor)


def _clear(output: Path) -> None:
    """Remove what a finished batch kept, and nothing else; its mark last, for what a kill leaves is known by it."""
    folder, whole = _names(output)
    for path in (*(folder / name for name in NEW), *folder.glob(ROWS), whole, folder / DONE):
        path.unlink(missing_ok=True)


@contextmanager
def _room(path: Path) -> Iterator[None]:
    """Say what to do where something cannot be written."""
    try:
        yield
    except OSError as error:
        raise BatchError(
            f"cannot write {path} ({error.strerror}): make room and run the same command again; what is done is kept"
        ) from error


def spool(stream: BinaryIO, output: Path) -> Path:
    """Keep a stream in the folder of an output, to be read more than once; of a job that has begun, only compare it.

    Raises:
        BatchError: it is not what the job began with.
    """
    folder = claim(output)
    path, fresh = folder / SPOOLED, folder / f"{SPOOLED}.new"
    folder.mkdir(exist_ok=True)
    with _room(folder), writing(fresh) as file:
        shutil.copyfileobj(stream, file, 1 << 20)
    if (folder / BEGUN).exists() and not (path.exists() and filecmp.cmp(path, fresh, shallow=False)):
        fresh.unlink()
        raise BatchError(f"standard input is not what {folder} was begun with: give it again, or remove that folder")
    fresh.replace(path)
    return path


@dataclass
class Summary:
    """What became of the rows so far."""

    rows: int = 0
    failed: int = 0
    tokens: int = 0
    rounds: int = 0
    accepted: int = 0
    failures: list[str] = field(default_factory=list)  # the first few, each with its line

    def add(self, row: Row, result: Mapping[str, Any]) -> None:
        self.rows += 1
        for name in ("tokens", "rounds", "accepted"):
            setattr(self, name, getattr(self, name) + result.get(name, 0))
        if "error" in result:
            self.failed += 1
            if len(self.failures) < 3:
                self.failures.append(f"line {row.line}: {result['error']}")

    @property
    def additional_per_pass(self) -> float:
        return self.accepted / self.rounds if self.rounds else 0.0


class Job:
    """One batch: its folder beside the output holds what is done, until the output is there.

    Args:
        about: all that the results depend on besides the rows: task, options, weights. A job goes on only with the
            same.
        rank, size: which of how many processes this is; each does its share of the rows that are left.
        meet: waits until all of them have come to it; tells whether any of them came with True.
        measure: called when the job is begun, not when it goes on; what it returns is kept as ``measured``.
        stopping: asked before each row; when it says yes, the rows in hand are finished and no more begun.

    Raises:
        BatchError: the output exists already, or was begun with another input or ``about``.
    """

    def __init__(
        self,
        source: Source,
        output: Path,
        *,
        about: Mapping[str, Any],
        rank: int = 0,
        size: int = 1,
        meet: Callable[[bool], bool] = bool,
        measure: Callable[[], Mapping[str, Any]] = dict,
        stopping: Callable[[], bool] = lambda: False,
    ):
        self.output = output
        self.format = format_of(output)
        self.folder = claim(output)
        _, self._whole = _names(output)
        self.rank, self.size, self.meet, self.stopping = rank, size, meet, stopping
        self.source = source
        header(self.format, source)  # refused now if at all
        check(output)
        self.total = sum(1 for _ in source)
        self.about = json.loads(json.dumps({**about, "input": source.digest(), "rows": self.total}))
        if rank == 0:
            with _room(self.folder):
                self._begin(measure)
        meet(False)
        self.measured = self._compare()
        self.journal = Journal(self.folder, rank=rank)
        meet(False)  # nobody writes before all have read what is left to do

    def run(
        self,
        answer: Answer,
        *,
        rows: range | None = None,
        seen: Callable[[Mapping[str, Any]], None] = lambda result: None,
    ) -> bool:
        """Do this process's share of the rows that are left; ``seen`` is told each result once it is recorded.

        Args:
            rows: only those with these numbers.

        Returns:
            Whether all of them are done, by all processes: False where one was told to stop.
        """
        checks: dict[int, int] = {}  # of the rows in hand

        def record(number: int, check: int, result: Mapping[str, Any]) -> None:
            self.journal.add(number, check, result)
            seen(result)

        def texts() -> Iterator[tuple[int, str]]:
            for number, row in self._left(range(self.total) if rows is None else rows):
                if self.stopping():
                    return
                if row.known is None:
                    checks[number] = _check(row)
                    yield number, row.text
                else:
                    record(number, _check(row), row.known)

        for number, result in answer(texts()):
            record(number, checks.pop(number), result)
        self.journal.sync()
        return not self.meet(self.stopping())

    def tally(self, rows: range) -> Summary:
        """What became of rows that are done, by whatever process."""
        summary = Summary()
        with closing(Journal(self.folder, rank=None)) as journal:
            for number, row in enumerate(islice(self.source, rows.stop)):
                if number in rows:
                    summary.add(row, journal.result(number))
        return summary

    def finish(self) -> Summary | None:
        """Put the output together, in the rows' order, and clear up; None where rows are left.

        Of several processes the first does it, when all have come to it, and the others return None.
        """
        self.journal.close()
        self.meet(False)
        if self.rank > 0:
            return None
        self.journal = Journal(self.folder, rank=None)
        try:
            if self.journal.done < self.total:
                return None
            claim(self.output)
            if self.output.exists():  # whole; only the clearing up was cut short
                with Path(os.devnull).open("wb") as file:
                    summary = self._write(file)
            else:
                self._whole.unlink(missing_ok=True)
                with _room(self._whole), writing(self._whole) as file:
                    summary = self._write(file)
                self._publish()
        finally:
            self.journal.close()
        (self.folder / BEGUN).rename(self.folder / DONE)  # from here on the name is free for another batch
        sync(self.folder)
        _clear(self.output)
        with suppress(OSError):  # somebody else's files are in it
            self.folder.rmdir()
        return summary

    def _left(self, rows: range) -> Iterator[tuple[int, Row]]:
        """The rows that this process does: those that are left are dealt out one by one."""
        left = 0
        for number, row in enumerate(islice(self.source, rows.stop)):
            if number in rows and not self.journal.has(number, _check(row)):
                if left % self.size == self.rank:
                    yield number, row
                left += 1

    def _begin(self, measure: Callable[[], Mapping[str, Any]]) -> None:
        """Write down what is begun, before any work is done."""
        path = self.folder / BEGUN
        if path.exists():
            return
        about = {**self.about, MEASURED: measure()}
        self.folder.mkdir(exist_ok=True)
        if others := [entry.name for entry in self.folder.iterdir() if entry.name not in NEW]:
            raise BatchError(f"{self.folder} holds {others[0]}, which no batch wrote: name another OUTPUT")
        with writing(fresh := path.with_name(f"{BEGUN}.new")) as file:
            file.write(json.dumps(about, indent=2).encode() + b"\n")
        fresh.replace(path)
        sync(self.folder)
        sync(self.folder.parent)

    def _compare(self) -> dict[str, Any]:
        """See that the job was begun with the same; return what was measured then."""
        path = self.folder / BEGUN
        try:
            begun = json.loads(path.read_bytes())
            measured = begun.pop(MEASURED)
        except (OSError, ValueError, KeyError) as error:
            raise BatchError(f"cannot read {path} ({error}): see that all hosts share its folder") from error
        for name in [*self.about, *begun]:
            if self.about.get(name) != begun.get(name):
                raise BatchError(
                    f"{self.folder} was begun with another {name} ({_short(begun.get(name))}, not "
                    f"{_short(self.about.get(name))}): give the same again, or remove that folder to start anew"
                )
        return measured

    def _write(self, file: BinaryIO) -> Summary:
        summary = Summary()
        file.write(header(self.format, self.source))
        for number, row in enumerate(self.source):
            if not self.journal.has(number, _check(row)):
                raise BatchError(
                    f"line {row.line} of {self.source.path} has changed while it was read: run the same command again, "
                    f"or remove {self.folder} to start anew"
                )
            result = self.journal.result(number)
            summary.add(row, result)
            file.write(render(self.format, self.source, row, result))
        return summary

    def _publish(self) -> None:
        """Give the output its name, unless something else has taken it."""
        try:
            os.link(self._whole, self.output)
        except FileExistsError as error:
            raise BatchError(f"{self.output} has appeared meanwhile: move it away and run the same again") from error
        except OSError:  # a file system without links
            self._whole.rename(self.output)
        sync(self.output.parent)


def _check(row: Row) -> int:
    return zlib.crc32(row.json.encode())


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:16]}…"
