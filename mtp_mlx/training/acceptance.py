"""How far drafts would be accepted, counted from every position of the answers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np


class Acceptance:
    """Counts per task. Until the first miss a draft is the true text, so teacher forcing gives the exact count."""

    def __init__(self, length: int):
        """``length``: tokens of a draft."""
        self.length = length
        self._drafts: dict[str, int] = defaultdict(int)
        self._reached: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(length))
        self._decoded: dict[str, np.ndarray] = defaultdict(lambda: np.zeros((length, 2)))

    def add(self, task: str, hits: np.ndarray, *, cut: bool = False) -> None:
        """One answer's ``hits`` (its tokens, length) bool: whether what is drafted from each is the backbone's own.

        ``cut``: the answer ends where its token budget did; the last token of a budget is never drafted.
        """
        right = np.logical_and.accumulate(hits, axis=1)
        self._drafts[task] += len(hits)
        self._reached[task] += right.sum(axis=0)
        accepted = right.sum(axis=1)
        if cut:
            accepted = np.minimum(accepted, np.arange(len(hits))[::-1])
        self._decoded[task] += [decoded(accepted.tolist(), most=most) for most in range(1, self.length + 1)]

    def to_json(self) -> dict[str, Any]:
        """accepted: mean accepted tokens of a draft, averaged over tasks; per_position: the share of drafts accepted
        that far; conditional: of those accepted one position before, also for each task; by_task: ``accepted`` of each
        task; additional: for each task the additional tokens per pass at draft length 1, 2, ..."""
        shares = {task: self._reached[task] / max(self._drafts[task], 1) for task in sorted(self._drafts)}
        per_position = np.mean(list(shares.values()), axis=0) if shares else np.zeros(self.length)
        return {
            "accepted": float(per_position.sum()),
            "per_position": per_position.tolist(),
            "conditional": _conditional(per_position),
            "conditional_by_task": {task: _conditional(share) for task, share in shares.items()},
            "by_task": {task: math.fsum(share) for task, share in shares.items()},
            "additional": {
                task: (taken[:, 0] / np.maximum(taken[:, 1], 1)).tolist()
                for task, taken in sorted(self._decoded.items())
            },
        }


def _conditional(per_position: np.ndarray) -> list[float]:
    before = np.concatenate([[1.0], per_position[:-1]])
    return (per_position / np.maximum(before, 1e-9)).tolist()


def decoded(accepted: Sequence[int], *, most: int) -> tuple[int, int]:
    """Decoding one answer: how many drafted tokens are accepted, and in how many passes after the prompt's.

    That one gives the first token; drafts begin behind it.

    Args:
        accepted: for each token of the answer, how many a draft from it would get accepted.
        most: the draft length.
    """
    at, total, passes = 1, 0, 0
    while at < len(accepted):
        taken = min(accepted[at], most)
        total, passes, at = total + taken, passes + 1, at + taken + 1
    return total, passes


def describe(row: dict[str, Any]) -> str:
    """A log row as a line to read."""
    if not row["by_task"]:
        return f"step {row['step']}: loss {row['loss']:.3f}, and no text held back to tell acceptance by"
    chances = " ".join(f"{share:.2f}" for share in row["conditional"])
    tasks = ", ".join(f"{task} {accepted:.2f}" for task, accepted in row["by_task"].items())
    return f"step {row['step']}: loss {row['loss']:.3f}, accepted {row['accepted']:.2f} ({tasks}), positions {chances}"
