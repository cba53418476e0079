"""The whole of ``mtp-mlx train``: each stage goes on where the last run stopped."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from mtp_mlx.backbone import Backbone, load_backbone
from mtp_mlx.drafters.lookup import measure
from mtp_mlx.head import load_head, save_head
from mtp_mlx.standalone import load_standalone, save_standalone
from mtp_mlx.tasks import TASKS
from mtp_mlx.terminal import counted
from mtp_mlx.training.acceptance import describe
from mtp_mlx.training.features import extract, held_back_features, read_features
from mtp_mlx.training.next_token import StandaloneStudent
from mtp_mlx.training.recipe import Recipe
from mtp_mlx.training.texts import (
    FILES,
    DataError,
    Example,
    choose,
    generate,
    is_held_back,
    read_examples,
    read_rows,
    spread,
)
from mtp_mlx.training.topics import requests
from mtp_mlx.training.trainer import Student, Trainer
from mtp_mlx.training.typos import read_misspellings
from mtp_mlx.training.unroll import HeadStudent
from mtp_mlx.training.variety import from_written, vary
from mtp_mlx.weights import making

LEAST = 50  # requests to write, with topics among them that are held back


def train(
    data: Path,
    run: Path,
    output: Path,
    *,
    backbone: Path,
    recipe: Recipe,
    per_task: int | None,
    from_head: Path | None = None,
    drafter: str = "mtp",
) -> list[dict[str, Any]]:
    """Texts → on-policy answers → features → an MTP head, or a standalone drafter of like size to compare it with.

    Args:
        data: a folder of .jsonl, .txt and .tsv files; see ``texts.read_rows`` and ``variety.vary``.
        run: everything between: texts.jsonl, features/, checkpoint.safetensors, training.png; kept for the next run.
            Its held-back-TASK.jsonl are for ``mtp-mlx eval``: texts of .jsonl documents that no training step sees.
        output: the folder of what is trained, written at the end, with the log. What is there already stays if it is
            better on the held-back documents; the new one then goes to ``run``/trained, as does one that the recipe
            leaves incomplete.
        from_head: a trained head to go on from; its layers replace the recipe's.
        drafter: what is trained, ``mtp`` or ``standalone``.

    Returns:
        The log: one row an evaluation on the held-back documents.

    Raises:
        DataError: nothing to train on, or what ``run`` holds belongs to something else.
        WeightsError: what is in ``output`` or ``from_head`` was made for another backbone.
    """
    if recipe.share < 1 and (drafter == "standalone" or from_head is None):
        raise DataError("--share is about a head that goes on from another: give --from-head, too")
    if recipe.without != "nothing" and (drafter == "standalone" or from_head is not None):
        raise DataError("--without is about a head that is trained from its start: leave out --from-head and --drafter")
    model = load_backbone(backbone)
    depth = len(model.model.layers)
    recipe = recipe.on(depth)
    start = None if from_head is None else load_head(from_head, model)
    if start is not None:
        recipe = replace(recipe, kv_layers=start.config.kv_layers)
    for layers in (recipe.kv_layers, recipe.standalone_layers if drafter == "standalone" else (0,)):
        if not all(0 <= layer < depth for layer in layers):
            raise DataError(f"the model has layers 0 to {depth - 1}, not all of {', '.join(map(str, layers))}")
    with making(output):  # now, not after hours, if it cannot be
        previous = _previous(output, model, replace(recipe, without="nothing"), drafter)
        world = mx.distributed.init()  # of one process, where mlx.launch did not start more
        if world.rank() == 0:
            prepare(data, run, model, per_task=per_task)
            texts = list(read_examples(run / "texts.jsonl"))
            extract(model, texts, run / "features", kv_layers=recipe.kv_layers, prompts=recipe.prompt_weight > 0)
        mx.eval(mx.distributed.all_sum(mx.array(1), group=world))  # the others wait for the features
        examples = read_features(run / "features", held_back=False)
        held_back = held_back_features(run / "features")
        if drafter == "standalone":
            student, folder = StandaloneStudent(model, recipe, examples), run / "standalone"
        else:
            student, folder = HeadStudent(model, recipe, examples, start=start), run
        began: Any = tree_flatten(student.module.trainable_parameters())
        log = Trainer(student, examples, folder).run(held_back=held_back)
        if world.rank() == 0:
            if recipe.share < 1:
                average(student.module, dict(began), share=recipe.share)
                log.append({**log[-1], **student.evaluate(held_back).to_json(), "share": recipe.share})
            texts = list(read_examples(run / "texts.jsonl"))
            score = None if previous is None else _score(previous, model, texts, run)
            better = recipe.without == "nothing" and (score is None or log[-1]["accepted"] > score)
            _write(student, place := output if better else folder / "trained", texts, log)
            print(describe(log[-1]))
            before = "" if score is None else f"before: {score:.2f}, {'replaced' if better else 'kept'}; "
            print(f"{before}the new one is in {place}")
    return log


def average(module: nn.Module, before: Mapping[str, mx.array], *, share: float) -> None:
    """Make every weight ``share`` of what it is and the rest of what it was."""
    after: Any = tree_flatten(module.trainable_parameters())
    mixed = [(name, share * array + (1 - share) * before[name]) for name, array in after]
    module.load_weights(mixed, strict=False)
    mx.eval(module.parameters())


def _previous(output: Path, model: Backbone, recipe: Recipe, drafter: str) -> Student | None:
    """What an earlier training left in the output folder."""
    if not (output / "config.json").is_file():
        return None
    if drafter == "standalone":
        return StandaloneStudent(model, recipe, start=load_standalone(output, model))
    return HeadStudent(model, recipe, start=load_head(output, model))


def _write(student: Student, folder: Path, texts: list[Example], log: list[dict[str, Any]]) -> None:
    """The trained weights, with the recipe and the log beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"recipe": asdict(student.recipe), "log": log}, indent=1)
    (folder / "training.json").write_text(text + "\n", encoding="utf-8")
    acceptance = {task: tuple(chances) for task, chances in log[-1]["conditional_by_task"].items()}
    if isinstance(student, HeadStudent):
        config = replace(student.head.config, copy_chance=copy_chance(texts), acceptance=acceptance)
        student.head.config = config
        save_head(student.head, folder)
    elif isinstance(student, StandaloneStudent):
        student.drafter.config = replace(student.drafter.config, acceptance=acceptance)
        save_standalone(student.drafter, folder)


def _score(previous: Student, model: Backbone, texts: list[Example], run: Path) -> float:
    """What an earlier head or drafter accepts on the held-back texts, by features of the layers that it reads."""
    folder = run / "features"
    if isinstance(previous, HeadStudent) and previous.head.config.kv_layers != previous.recipe.kv_layers:
        folder = run / "features-before"
        extract(model, [e for e in texts if e.held_back], folder, kv_layers=previous.head.config.kv_layers)
    return previous.evaluate(held_back_features(folder)).to_json()["accepted"]


def copy_chance(texts: Iterable[Example], *, most: int = 600) -> tuple[float, ...]:
    """How often prompt lookup is right on at most ``most`` training answers to the product's tasks."""
    examples = sorted((e for e in texts if e.task in TASKS and not e.held_back), key=lambda e: spread(e.id))
    return tuple(measure(([*e.prompt, *e.answer], len(e.prompt)) for e in examples[:most]))


def prepare(data: Path, run: Path, model: Backbone, *, per_task: int | None) -> None:
    """The backbone's answers to prompts of many kinds: ``data``'s own, varied, and ones about what it wrote itself.

    It is asked to write about as many topics as ``data`` makes prompts, ``LEAST`` at least, or ``per_task``: a handful
    of messages does not wait for thousands.

    Raises:
        DataError: nothing to train on.
    """
    texts = run / "texts.jsonl"
    own = read_rows(data)
    unseen = [row["text"] for row in own if is_held_back(row)]
    varied = list(vary(own, data, held_back=unseen))
    if not varied:
        raise DataError(f"nothing to train on in {data}: give a folder with {FILES}")
    write_held_back(own, run)
    asked = choose(requests(), per_task=max(LEAST, len(varied)) if per_task is None else per_task)
    print(told(data, len(choose(varied, per_task=per_task)), len(asked)), file=sys.stderr, flush=True)
    generate(model, asked, texts)
    generate(model, asked, run / "written.jsonl", temperature=1.0)
    rows = [*varied, *written(run / "written.jsonl", data, model)]
    generate(model, choose(rows, per_task=per_task), texts)


def told(data: Path, theirs: int, asked: int) -> str:
    """How much is answered, in a line: ``asked`` requests twice, and the texts of one time as prompts of two tasks."""
    both = f"up to {counted(theirs, 'prompt')} made of {data}, and up to {4 * asked:,} of its own"
    return f"mtp-mlx: the model answers {both}, before training begins (--per-task N limits both)"


def written(path: Path, data: Path, model: Backbone) -> Iterator[dict[str, Any]]:
    """Rows for both tasks made of what the backbone wrote, sampled: more varied than its most likely answers."""
    misspellings = read_misspellings(data)
    for example in read_examples(path):
        text = model.tokenizer.decode([id for id in example.answer if id not in model.eos])
        topic = example.id.rpartition("-")[0]  # the document of its request, held back whole or not at all
        yield from from_written(example.id, topic, text, misspellings)


def write_held_back(rows: list[dict[str, Any]], run: Path) -> None:
    """The rows of held-back documents, a file a task, as ``mtp-mlx eval`` reads them."""
    run.mkdir(parents=True, exist_ok=True)
    for task in sorted({row["task"] for row in rows}):
        mine = [{"id": row["id"], "text": row["text"]} for row in rows if row["task"] == task and is_held_back(row)]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in mine)
        (run / f"held-back-{task}.jsonl").write_text(text, encoding="utf-8")
