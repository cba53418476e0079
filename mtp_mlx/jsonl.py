"""JSON Lines: one object a line, read as it streams, every fault named with its file and line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class JsonlError(ValueError):
    """A file or a line cannot be read; the message is one line and says what to do."""


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of each line that is not blank; with or without a byte order mark, LF or CRLF.

    Only a line feed ends a line: JSON strings may hold U+2028, U+0085 and the like as they are.

    Raises:
        JsonlError: the file cannot be read, is not UTF-8, or a line is not a JSON object.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                if line.strip():
                    yield number, parse(line, where=f"{path}, line {number}")
    except OSError as error:
        raise JsonlError(f"cannot read {path}: {error.strerror}") from error


def parse(line: bytes, *, where: str) -> dict[str, Any]:
    """The object that a line holds.

    Raises:
        JsonlError: the line is not UTF-8 or not a JSON object; ``where`` names it.
    """
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise JsonlError(f"{where} is not UTF-8 (byte {error.start}): convert it first") from error
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits and deep nesting, too
        raise JsonlError(f"{where} is not JSON ({error}): mend or remove it") from error
    if not isinstance(value, dict):
        raise JsonlError(f"{where} is not a JSON object: mend or remove it")
    return value
