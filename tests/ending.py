"""Waiting on other processes: for their end, or for what they do to a file in the meantime."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from multiprocessing.process import BaseProcess

LOOK = 0.005  # seconds between two looks at a file: nothing tells of it


def ended(process: subprocess.Popen | BaseProcess, *, within: float) -> bool:
    """Whether a process ends within so many seconds; returns as soon as it does."""
    if isinstance(process, BaseProcess):
        process.join(within)
        return not process.is_alive()
    try:
        process.wait(within)
    except subprocess.TimeoutExpired:
        return False
    return True


def until(condition: Callable[[], bool], process: subprocess.Popen | BaseProcess) -> None:
    """Until a condition holds, or the process that is to bring it about has ended."""
    while not condition() and not ended(process, within=LOOK):
        pass
