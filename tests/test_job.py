"""The whole of mtp-mlx train: from a folder of texts to a head that loads, and what it leaves alone."""

import json
from dataclasses import asdict, replace

import mlx.core as mx
import numpy as np
import pytest
from lessons import RECIPE, ROOT, rows

from mtp_mlx.head import load_head
from mtp_mlx.standalone import load_standalone
from mtp_mlx.tasks import TASKS
from mtp_mlx.training.acceptance import Acceptance
from mtp_mlx.training.job import train, written
from mtp_mlx.training.texts import (
    DataError,
    Example,
    is_held_back,
)
from mtp_mlx.training.topics import requests


def test_what_is_made_of_a_held_back_topic_is_held_back(tiny, data, tmp_path):
    """Topics are documents: none of them may be on both sides."""
    asked = requests()
    unseen = [row for row in asked if is_held_back(row)]
    seen = [row for row in asked if not is_held_back(row)]
    assert unseen
    path = tmp_path / "written.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for row in (*unseen[:9], *seen[:9]):
            answer = tiny.tokenizer.encode("It was a long day. We went home.")
            file.write(json.dumps(asdict(Example(row["id"], "write", False, 1, [1], answer))) + "\n")
    made = list(written(path, data, tiny))
    assert {row["document"] for row in made if is_held_back(row)} == {row["document"] for row in unseen[:9]}
    assert {row["document"] for row in made if not is_held_back(row)} == {row["document"] for row in seen[:9]}


def test_the_whole_command_makes_a_head_that_loads(tiny, data, tmp_path):
    recipe = replace(RECIPE, draft_vocab=256, epochs=1, anchors=256)
    options = {"backbone": tiny.path, "recipe": recipe, "per_task": 3}
    log = train(data, tmp_path / "run", tmp_path / "head", **options)
    held_back = {row["text"] for row in rows(24) if is_held_back(row)}
    for task in TASKS:
        for line in (tmp_path / "run" / f"held-back-{task}.jsonl").read_text(encoding="utf-8").splitlines():
            assert json.loads(line)["text"] in held_back
    head = load_head(tmp_path / "head", tiny)
    assert head.config.kv_layers == (1, 3)
    assert len(head.config.copy_chance) == 8
    assert tiny.eos <= set(np.array(head.draft_vocab).tolist())
    kept = json.loads((tmp_path / "head" / "training.json").read_text(encoding="utf-8"))
    assert kept["log"] == log
    assert set(log[-1]["by_task"]) <= {"proofread", "summarize", "write"}
    assert head.draft_vocab.dtype == mx.int32

    train(data, tmp_path / "run", tmp_path / "drafter", drafter="standalone", **options)
    assert load_standalone(tmp_path / "drafter", tiny).config.layers == (0, 3)


def test_a_better_head_stays(tiny, data, tmp_path, monkeypatch, capsys):
    recipe = replace(RECIPE, draft_vocab=256, epochs=1, anchors=256)
    options = {"backbone": tiny.path, "per_task": 3}
    train(data, tmp_path / "run", tmp_path / "head", recipe=recipe, **options)
    first = (tmp_path / "head" / "model.safetensors").read_bytes()
    other = replace(recipe, kv_layers=(0, 2), learning_rate=1e-9)  # reads other layers, and learns next to nothing
    monkeypatch.setattr(
        Acceptance, "to_json", lambda self, real=Acceptance.to_json: {**real(self), "accepted": next(figures)}
    )
    figures = iter([0.1] * 99 + [0.1])
    train(data, tmp_path / "other", tmp_path / "head", recipe=other, **options)
    assert (tmp_path / "head" / "model.safetensors").read_bytes() == first
    assert load_head(tmp_path / "other" / "trained", tiny).config.kv_layers == (0, 2)
    assert "kept" in capsys.readouterr().out
    figures = iter([0.5] * (len(json.loads((tmp_path / "head" / "training.json").read_text())["log"])) + [0.1] * 9)
    train(data, tmp_path / "third", tmp_path / "head", recipe=other, **options)
    assert load_head(tmp_path / "head", tiny).config.kv_layers == (0, 2)


@pytest.mark.parametrize("options", [{"drafter": "standalone"}, {"from_head": ROOT}])
def test_only_a_new_head_can_do_without_something(tiny, data, tmp_path, options):
    recipe = replace(RECIPE, without="state")
    with pytest.raises(DataError, match="--without"):
        train(data, tmp_path, tmp_path, backbone=tiny.path, recipe=recipe, per_task=1, **options)
