"""A picture of a training as it goes on: loss and acceptance by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def plot(log: list[dict[str, Any]], path: Path) -> None:
    """Draw a training's log to a PNG, put in place whole so that it can be watched."""
    import matplotlib.figure  # here, so that a command that draws nothing does not wait for it

    figure = matplotlib.figure.Figure(figsize=(8, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    steps = [row["step"] for row in log]
    above.plot(steps, [row["loss"] for row in log], color="#0072B2", marker=".")
    above.set_ylabel("loss (training)")
    below.plot(steps, [row["accepted"] for row in log], color="#1A1A1A", marker=".", label="mean of the tasks")
    for task in log[-1]["by_task"]:
        below.plot(steps, [row["by_task"].get(task) for row in log], marker=".", alpha=0.7, label=task)
    below.set(ylabel="accepted tokens a draft (held back)", xlabel="step", ylim=(0, None))
    below.legend()
    scratch = path.with_name(f"unfinished-{path.name}")
    figure.savefig(scratch, dpi=100)
    scratch.replace(path)
