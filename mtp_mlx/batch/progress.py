"""How far a batch is: a bar on a terminal, elsewhere a line a minute, for people or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from time import monotonic
from typing import Any

from tqdm import tqdm

from mtp_mlx.terminal import counted

MINUTE = 60.0


class Progress:
    """Told each result as it comes; writes to standard error.

    Args:
        total: rows in all; of them ``done`` before this run.
        quiet: say nothing.
        as_json: one JSON object a minute in place of bar or line.
    """

    def __init__(self, total: int, *, done: int = 0, quiet: bool = False, as_json: bool = False):
        self._bar = tqdm(
            total=total, initial=done, unit="row", disable=quiet or as_json or not sys.stderr.isatty(), smoothing=0.05
        )
        self._speaks = self._bar.disable and not quiet
        self._quiet, self._as_json = quiet, as_json
        self._total, self._first, self._rows = total, done, done
        self._accepted = self._rounds = self._failed = 0
        self._shape: dict[str, int] = {}
        self._said: set[str] = set()
        self._started = self._spoken = monotonic()

    def add(self, result: Mapping[str, Any]) -> None:
        self._rows += 1
        self._failed += "error" in result
        self._accepted += result.get("accepted", 0)
        self._rounds += result.get("rounds", 0)
        self._bar.set_postfix(self._acceptance(), refresh=False)
        self._bar.update()
        if self._speaks and monotonic() - self._spoken >= MINUTE:
            self.speak()

    def say(self, line: str) -> None:
        """Tell something that a reader should know, once."""
        if line not in self._said:
            self._said.add(line)
            self._note(line)

    def _note(self, line: str) -> None:
        if not self._quiet:
            told = json.dumps({"note": line}) if self._as_json else f"mtp-mlx: {line}"
            self._bar.write(told, file=sys.stderr)

    def tell(self, **shape: int) -> None:
        """Tell the shape of the passes from here on: texts at once, their rows, how many of those are drafts."""
        before, self._shape = self._shape, self._shape | shape
        if before == self._shape or len(self._shape) < 3:
            return
        batch, width, drafts = (self._shape[name] for name in ("batch", "width", "draft_length"))
        passes = f"{counted(batch, 'text')} at once, {counted(width, 'row')} each in a pass"
        self._note(f"{passes}, {drafts or 'none'} of them drafted")

    def speak(self) -> None:
        """Say how far it is, as a line."""
        self._spoken = monotonic()
        rate = (self._rows - self._first) / max(self._spoken - self._started, 1e-9)
        left = (self._total - self._rows) / rate if rate else None
        if self._as_json:
            told = {"rows": self._rows, "of": self._total, "rows_per_second": round(rate, 3)}
            told |= self._acceptance() | self._shape
            line = json.dumps(told | {"seconds_left": None if left is None else round(left)})
        else:
            figures = "".join(f", {name} {value}" for name, value in self._acceptance().items())
            rest = "" if left is None else f", {tqdm.format_interval(left)} left"
            line = f"{self._rows:,} of {counted(self._total, 'row')}, {60 * rate:.1f} a minute{figures}{rest}"
        print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        self._bar.close()

    def _acceptance(self) -> dict[str, Any]:
        return {"additional": round(self._accepted / self._rounds, 2) if self._rounds else 0.0, "failed": self._failed}
