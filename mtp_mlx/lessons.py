"""What the page teaches with, recorded from the real model: mtp-mlx lessons."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mtp_mlx import pipeline as pipelines
from mtp_mlx.backbone import nbytes
from mtp_mlx.costs import measure
from mtp_mlx.pipeline import Pipeline
from mtp_mlx.request import Request
from mtp_mlx.tasks import PROOFREAD, SUMMARIZE, TASKS

ASSETS = Path(__file__).parent.parent / "assets"
CONTEXTS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
WIDTHS = tuple(range(1, 9))
SECONDS = 20.0  # of measuring what passes and drafts cost
SURE, UNSURE = PROOFREAD.examples[3], "Roses is red violets is blue"
PLACE = "could you please tell me were is the nearest pharmacie"
RUNS = (
    *(Request("proofread", SURE, drafter=name, inspect=True) for name in ("mtp", "lookup", "standalone", "plain")),
    Request("summarize", SUMMARIZE.examples[0], inspect=True),
    Request("proofread", UNSURE, inspect=True),
)


# What each fault is shown on.
CASES = (
    Request("proofread", "she dont like coffe but she drink tea every mornings", fault="end"),
    Request("summarize", SUMMARIZE.examples[3], fault="budget"),
    Request("proofread", PLACE, fault="penalty"),
    Request("proofread", PLACE, fault="stale"),
    Request("proofread", "Thanks so much 😊 see u tommorow 🎉🎉", fault="emoji"),
)


def runs(pipeline: Pipeline) -> Iterator[tuple[str, dict[str, Any]]]:
    """The recorded runs: name and trace."""
    for number, request in enumerate(RUNS, start=1):
        yield f"{number}-{request.task}-{request.drafter}", finished(pipeline, request)


def finished(pipeline: Pipeline, request: Request) -> dict[str, Any]:
    """The whole trace of a run."""
    run = pipeline.start(request)
    for _ in run:
        pass
    return run.trace.to_json()


def pair(pipeline: Pipeline, case: Request) -> dict[str, Any]:
    """A text as it should be, and as the fault makes it; both whole traces."""
    right, wrong = (finished(pipeline, replace(case, fixed=fixed)) for fixed in (True, False))
    return {"fault": case.fault, "right": right, "wrong": wrong}


def memory(pipeline: Pipeline) -> list[dict[str, Any]]:
    """The ledger with the head, and with a standalone drafter in its place, at some lengths of context."""
    rival = Pipeline(pipeline.backbone)
    rival.standalone()
    ledgers = {"head": Pipeline(pipeline.backbone, pipeline.head), "standalone": rival}
    return [
        {"tokens": rows} | {name: one.ledger(rows=rows).entries for name, one in ledgers.items()} for rows in CONTEXTS
    ]


def lessons(pipeline: Pipeline, *, seconds: float = SECONDS) -> dict[str, Any]:
    """All that the lessons need besides runs."""
    drafters = {name: pipeline.drafter(name) for name in ("mtp", "standalone")}
    head = pipeline.head
    assert head is not None
    return {
        "machine": {"cores": os.cpu_count(), "processor": platform.machine(), "system": platform.system()},
        "model": {
            "layers": len(pipeline.backbone.model.layers),
            "size": pipeline.backbone.args.hidden_size,
            "bytes": pipeline.backbone.nbytes,
            "head": {"bytes": nbytes(head), "kv_layers": list(head.config.kv_layers)},
        },
        "memory": memory(pipeline),
        "costs": {
            name: asdict(measure(pipeline.backbone, drafter, widths=WIDTHS, seconds=seconds))
            for name, drafter in drafters.items()
        },
        "acceptance": {
            name: {task: list(pipeline.chances(name, task)[: WIDTHS[-1] - 1]) for task in TASKS} for name in drafters
        },
        "faults": [pair(pipeline, case) for case in CASES],
    }


def record() -> None:
    """Write everything anew to assets/."""
    pipeline = pipelines.load()
    for old in (ASSETS / "traces").glob("*.json"):
        old.unlink()
    for name, trace in runs(pipeline):
        _write(ASSETS / "traces" / f"{name}.json", trace)
    _write(ASSETS / "lessons.json", lessons(pipeline))


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
