"""What this machine runs on, and what is wrong with it: device, BLAS, weights, exactness, head, standalone drafter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx

from mtp_mlx import blas
from mtp_mlx.backbone import load_backbone
from mtp_mlx.head import MTPHead, load_head
from mtp_mlx.probe import probe, probe_batch
from mtp_mlx.profiles import human
from mtp_mlx.prompt import TextError, frame
from mtp_mlx.standalone import Standalone, load_standalone
from mtp_mlx.tasks import TASKS
from mtp_mlx.weights import WeightsError


@dataclass(frozen=True)
class Finding:
    """One line of the report; where it is not good, the text says what cures it."""

    name: str
    good: bool
    text: str


def examine(backbone: Path, head: Path, standalone: Path, *, width: int, batch: int = 1) -> Iterator[Finding]:
    """Check one thing after the other; what depends on weights that do not load is left out."""
    yield Finding("device", True, f"{mx.default_device()}, mlx {version('mlx')}")
    library = blas.load()
    threads = f", threads: {library.threads} ({library.why})" if library.threads else ""
    yield Finding("BLAS", library.problem is None, library.problem or f"{library.name}{threads}")
    try:
        model = load_backbone(backbone)
    except WeightsError as error:
        yield Finding("backbone", False, str(error))
        return
    kind = str(model.dtype).removeprefix("mlx.core.") + (", passes compiled" if model.compiled else "")
    yield Finding("backbone", True, f"{backbone.name}, {human(model.nbytes)} in memory as {kind}")
    try:
        for task in TASKS.values():
            frame(model.tokenizer, task)
    except TextError as error:
        yield Finding("template", False, str(error))
    result = probe(model, width=width)
    yield Finding("exact", result.exact, str(result).removeprefix("exact: "))
    if batch > 1:
        result = probe_batch(model, texts=batch, width=width)
        yield Finding("batch", result.exact, str(result).removeprefix("exact: "))
    try:
        loaded = load_head(head, model)
    except WeightsError as error:
        yield Finding("head", False, str(error))
    else:
        layers = ", ".join(map(str, loaded.config.kv_layers))
        yield Finding("head", True, f"{head.name}, reads layers {layers}, {_drafts_from(loaded)}")
    try:
        rival = load_standalone(standalone, model)
    except WeightsError as error:
        yield Finding("standalone", False, str(error))
    else:
        layers = len(rival.config.layers)
        yield Finding("standalone", True, f"{standalone.name}, layers of its own: {layers}, {_drafts_from(rival)}")


def _drafts_from(drafter: MTPHead | Standalone) -> str:
    return f"drafts from {drafter.draft_vocab.size:,} tokens"
