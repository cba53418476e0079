"""Rows in and out: JSON Lines, CSV or plain text, each row with its text or with what is wrong with it."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mtp_mlx.batch.streams import LONGEST, BatchError, check_again, lines, reading
from mtp_mlx.jsonl import JsonlError, parse

FORMATS = ("jsonl", "csv", "text")
NOTHING = {"text": "", "tokens": 0, "rounds": 0, "accepted": 0, "additional_per_pass": 0.0, "finish": "end"}
SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}  # whatever else: plain text
RAW = "input"  # the JSON field that holds, as a string, a line that is no row
RESULT = ("text", "tokens", "rounds", "accepted", "additional_per_pass", "finish", "seconds", "error")


@dataclass(frozen=True)
class Row:
    """One row as it came in.

    Attributes:
        line: the line that it begins in, from 1.
        text: what to work on.
        error: what is wrong with the row itself; None where nothing is.
        json: all of it as a JSON object: a JSON line as it stands, so that no field changes.
        cells: all of it as CSV cells; none where it is a JSON line.
        blank: it is an empty line of plain text, such as stands between paragraphs.
    """

    line: int
    text: str
    error: str | None
    json: str
    cells: tuple[str, ...] = ()
    blank: bool = False

    @property
    def known(self) -> Mapping[str, Any] | None:
        """What is told of it without any work: its error, or an empty answer; None: it is to be worked on."""
        if self.error is not None:
            return {"error": self.error}
        return NOTHING if self.blank else None


@dataclass(frozen=True)
class Source:
    """A file of rows, read anew each time it is iterated.

    Attributes:
        field: the JSON field or CSV column that holds the text.
        into: the JSON field that the result goes to, and the first part of its CSV columns' names.
        name: what messages call it; the path where it is left out.

    Raises:
        BatchError: the file can be read only once, or ``into`` is the name of something that is there; of a JSON line's
            field when it is read.
    """

    path: Path
    format: str
    field: str = "text"
    into: str = "result"
    name: str = ""

    def __post_init__(self) -> None:
        check_again(self.path)
        if self.field == self.into:
            raise BatchError(f"the result would take the place of the field {self.field!r}: give --into another name")
        if self.into == RAW:
            raise BatchError(f"{RAW!r} holds a line that is no row: give --into another name")

    def __iter__(self) -> Iterator[Row]:
        with reading(self.path) as file:
            if self.format == "csv":
                yield from self._csv(_records(lines(file)))
            else:
                read = self._json if self.format == "jsonl" else self._plain
                for number, line in enumerate(lines(file), 1):
                    body = line.removesuffix(b"\n").removesuffix(b"\r")
                    if len(line) > LONGEST:
                        yield self._bad(number, f"the line is longer than {LONGEST:,} bytes", "")
                    elif self.format == "text" or body.strip():
                        yield read(number, body)

    @property
    def called(self) -> str:
        return self.name or str(self.path)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of the CSV columns that come in; plain text is one column.

        Raises:
            BatchError: the header is missing or damaged, or does not go with ``field`` and ``into``.
        """
        if self.format != "csv":
            return (self.field,)
        with reading(self.path) as file:
            _, names, error, _ = next(_records(lines(file)), (1, [], "it is empty", ""))
        if error:
            raise BatchError(f"{self.called} does not begin with the names of its columns ({error}): add them")
        if len({*names}) < len(names):
            raise BatchError(f"{self.called} has two columns of one name: rename one")
        if self.field not in names:
            raise BatchError(f"{self.called} has no column {self.field!r}: give --field one of {', '.join(names)}")
        if taken := [name for name in names if name.startswith(f"{self.into}.")]:
            raise BatchError(f"{self.called} has a column {taken[0]!r} already: give --into another name")
        return tuple(names)

    def digest(self) -> str:
        """SHA-256 of what is in the file, decompressed."""
        digest = hashlib.sha256()
        with reading(self.path) as file:
            while block := file.read(1 << 20):
                digest.update(block)
        return digest.hexdigest()

    def _json(self, number: int, line: bytes) -> Row:
        try:
            value = parse(line, where="the line")
        except JsonlError as error:
            return self._bad(number, str(error), line.decode("utf-8", "backslashreplace"))
        raw = line.decode().strip()
        if self.into in value:  # no error of the row's own: that would take its place
            raise BatchError(
                f"{self.called}, line {number} has a field {self.into!r} already: give --into another name"
            )
        text = value.get(self.field)
        if not isinstance(text, str):
            return Row(number, "", f"the row has no {self.field!r} that is a string: mend it", raw)
        return Row(number, text, None, raw)

    def _plain(self, number: int, line: bytes) -> Row:
        text, error = _decode(line)
        blank = error is None and not text.strip()
        return Row(number, text, error, _dumps({self.field: text}), (text,), blank)

    def _csv(self, records: Iterator[tuple[int, list[str], str | None, str]]) -> Iterator[Row]:
        columns = self.columns
        at = columns.index(self.field)
        next(records)
        for number, cells, error, raw in records:
            if not error and len(cells) != len(columns):
                error = f"the row has {len(cells)} cells, not {len(columns)}: mend it"
            if error and len(cells) != len(columns):
                yield self._bad(number, error, raw, tuple(cells))
            else:
                object = _dumps(dict(zip(columns, cells, strict=True)))
                yield Row(number, cells[at], error, object, tuple(cells))

    def _bad(self, number: int, error: str, raw: str, cells: tuple[str, ...] = ()) -> Row:
        """A row that is not one: whatever is there is kept as a string."""
        return Row(number, "", error, _dumps({RAW: raw}), cells or (raw,))


def format_of(path: Path) -> str:
    """The format that a file's name stands for, without .gz or .zst."""
    name = path.with_suffix("") if path.suffix in (".gz", ".zst") else path
    return SUFFIXES.get(name.suffix, "text")


def header(format: str, source: Source) -> bytes:
    """What a file of results begins with: the names of CSV columns, nothing in other formats.

    Raises:
        BatchError: rows of this source do not go into this format.
    """
    if format == "jsonl" and source.format == "csv" and source.into in source.columns:
        raise BatchError(f"{source.called} has a column {source.into!r} already: give --into another name")
    if format != "csv":
        return b""
    if source.format == "jsonl":
        raise BatchError("rows of JSON Lines may have any fields and do not fit a CSV: give an OUTPUT that ends .jsonl")
    return _csv_line([*source.columns, *(f"{source.into}.{name}" for name in RESULT)])


def render(format: str, source: Source, row: Row, result: Mapping[str, Any]) -> bytes:
    """A row with its result, as one record of a file."""
    if format == "jsonl":
        body = row.json[:-1].rstrip()
        comma = "" if body == "{" else ", "
        return f"{body}{comma}{_dumps(source.into)}: {_dumps(dict(result))}}}\n".encode()
    if format == "csv":
        n = len(source.columns) if row.error else len(row.cells)
        cells = [*row.cells[:n], *[""] * (n - len(row.cells))]
        return _csv_line([*cells, *(result.get(name, "") for name in RESULT), *row.cells[n:]])
    if "error" in result:
        return f"[error: {result['error']}]\n".encode()
    return result["text"].replace("\r", " ").replace("\n", " ").encode() + b"\n"


def _records(physical: Iterator[bytes]) -> Iterator[tuple[int, list[str], str | None, str]]:
    """(line, cells, error, raw text) of each CSV record that is not a blank line."""
    csv.field_size_limit(LONGEST)
    read: list[tuple[str, str | None]] = []  # the lines of the record at hand, each with what is wrong with it
    again: deque[tuple[str, str | None]] = deque()  # what came behind a line that is no record

    def decoded() -> Iterator[str]:
        while line := again.popleft() if again else next(map(_decode, physical), None):
            read.append(line)
            yield line[0]

    number, reader = 1, csv.reader(decoded(), strict=True)
    while True:
        read.clear()
        try:
            cells, fault = next(reader), None
        except StopIteration:
            return
        except csv.Error as error:  # such as a quote that nothing closes: that line alone is lost, not all behind it
            cells, fault = [], f"the row is not CSV ({error}): mend it"
            again.extendleft(reversed(read[1:]))
            del read[1:]
            reader = csv.reader(decoded(), strict=True)
        faults = [*(error for _, error in read if error), *([fault] if fault else [])]
        if cells or faults:
            yield number, cells, faults[0] if faults else None, "".join(text for text, _ in read).rstrip("\r\n")
        number += len(read)


def _decode(line: bytes) -> tuple[str, str | None]:
    """The text of a line, and what is wrong with it: bytes that are no UTF-8 are spelt out."""
    body = line.removesuffix(b"\n").removesuffix(b"\r")
    if len(line) > LONGEST:
        return "", f"the line is longer than {LONGEST:,} bytes"
    try:
        return line.decode(), None
    except UnicodeDecodeError as error:
        fault = f"the row is not UTF-8 (byte {error.start}): convert it first"
        return body.decode("utf-8", "backslashreplace") + line[len(body) :].decode(), fault


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _csv_line(cells: Iterable[object]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()
