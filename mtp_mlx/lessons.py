"""What the page teaches with, recorded from the real model: mtp-mlx lessons."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mtp_mlx import pipeline as pipelines
from mtp_mlx.backbone import nbytes
from mtp_mlx.costs import measure
from mtp_mlx.faults import FAULTS
from mtp_mlx.pipeline import Pipeline
from mtp_mlx.request import Request
from mtp_mlx.tasks import PROOFREAD, SUMMARIZE, TASKS
from mtp_mlx.trace import Trace

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


@dataclass(frozen=True)
class Case:
    """What a fault is shown on."""

    fault: str
    request: Request


CASES = (
    Case("end", Request("proofread", "she dont like coffe but she drink tea every mornings")),
    Case("budget", Request("summarize", SUMMARIZE.examples[0], max_tokens=20)),
    Case("penalty", Request("proofread", PLACE)),
    Case("stale", Request("proofread", PLACE)),
    Case("emoji", Request("proofread", "Thanks so much 😊 see u tommorow 🎉🎉")),
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


def pair(pipeline: Pipeline, case: Case) -> dict[str, Any]:
    """A text as it should be, and as the fault makes it; both whole traces."""
    fault, request = FAULTS[case.fault], case.request
    prompt, drafter = pipeline.prompt(request), pipeline.drafter(request.drafter)
    max_tokens = pipeline.max_tokens(request, prompt)
    texts = {}
    for which, decode, shown in (("right", fault.right, Trace), ("wrong", fault.wrong, fault.shown)):
        trace = shown(
            task=request.task,
            input=request.text,
            drafter=request.drafter,
            width=request.rows,
            draft_length=request.drafts,
            max_tokens=max_tokens,
            decode=pipeline.backbone.tokenizer.decode,
            eos=pipeline.backbone.eos,
        )
        for event in decode(
            pipeline.backbone,
            prompt.ids,
            drafter=drafter,
            max_tokens=max_tokens,
            width=request.rows,
            draft_length=request.drafts,
            prefix=pipeline.prefix(prompt),
        ):
            trace.add(event)
        texts[which] = trace.to_json()
    return {"fault": case.fault} | texts


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
