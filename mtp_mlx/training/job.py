"""The whole of ``mtp-mlx train``: each stage goes on where the last run stopped."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mtp_mlx.backbone import load_backbone
from mtp_mlx.head import load_head, save_head
from mtp_mlx.training.features import extract, read_features
from mtp_mlx.training.texts import choose, generate, is_held_back, read_rows
from mtp_mlx.training.trainer import Recipe, Trainer, describe


def train(
    data: Path,
    run: Path,
    output: Path,
    *,
    backbone: Path,
    recipe: Recipe,
    per_task: int | None,
    from_head: Path | None = None,
) -> list[dict]:
    """Texts → on-policy answers → features → head.

    Args:
        data: a folder of .jsonl files; see ``texts.read_rows``.
        run: everything between: texts.jsonl, features/, checkpoint.safetensors; kept for the next run. Its
            held-back-TASK.jsonl are for ``mtp-mlx eval``: texts of documents that no training step sees.
        from_head: a trained head to go on from; its layers replace the recipe's.
        output: the head's folder, written at the end, with the log of the training.

    Returns:
        The log: one row an evaluation on the held-back documents.
    """
    model = load_backbone(backbone)
    start = None if from_head is None else load_head(from_head, model)
    if start is not None:
        recipe = replace(recipe, kv_layers=start.config.kv_layers)
    rows = choose(read_rows(data), per_task=per_task)
    write_held_back(rows, run)
    generate(model, rows, run / "texts.jsonl")
    extract(model, run / "texts.jsonl", run / "features", kv_layers=recipe.kv_layers)
    trainer = Trainer(model, recipe, list(read_features(run / "features", held_back=False)), run, start=start)
    log = trainer.run(held_back=list(read_features(run / "features", held_back=True)))
    output.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"recipe": asdict(recipe), "log": log}, indent=1)
    (output / "training.json").write_text(text + "\n", encoding="utf-8")
    save_head(trainer.head, output)
    print(describe(log[-1]))
    return log


def write_held_back(rows: list[dict[str, Any]], run: Path) -> None:
    """The rows of held-back documents, a file a task, as ``mtp-mlx eval`` reads them."""
    run.mkdir(parents=True, exist_ok=True)
    for task in sorted({row["task"] for row in rows}):
        mine = [{"id": row["id"], "text": row["text"]} for row in rows if row["task"] == task and is_held_back(row)]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in mine)
        (run / f"held-back-{task}.jsonl").write_text(text, encoding="utf-8")
