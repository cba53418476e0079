"""JSON Lines: one object a line, every fault named with its file and line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class JsonlError(ValueError):
    """A file cannot be read; the message is one line and names it."""


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of each line that is not blank; with or without a byte order mark, LF or CRLF.

    Only a line feed ends a line: JSON strings may hold U+2028, U+0085 and the like as they are.

    Raises:
        JsonlError: the file cannot be read, is not UTF-8, or a line is not a JSON object.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise JsonlError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise JsonlError(f"{path} is not UTF-8 (byte {error.start}): convert it first") from error
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:  # numbers of thousands of digits and deep nesting, too
            raise JsonlError(f"{path}, line {number} is not JSON ({error}): mend or remove it") from error
        if not isinstance(value, dict):
            raise JsonlError(f"{path}, line {number} is not a JSON object: mend or remove it")
        yield number, value
