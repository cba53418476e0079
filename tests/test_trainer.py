"""The trainer learns, resumes with the same result, and shares its work between processes."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from lessons import RECIPE, ROOT
from mlx.utils import tree_flatten

from mtp_mlx.training.features import extract, read_features
from mtp_mlx.training.next_token import StandaloneStudent
from mtp_mlx.training.recipe import Recipe
from mtp_mlx.training.texts import (
    DataError,
    read_examples,
)
from mtp_mlx.training.trainer import Trainer
from mtp_mlx.training.unroll import HeadStudent

STUDENTS = {"head": HeadStudent, "standalone": StandaloneStudent}


@pytest.mark.parametrize("kind", STUDENTS)
def test_it_learns_and_only_what_is_trained_changes(tiny, features, tmp_path, kind):
    examples = read_features(features, held_back=False)
    before = {name: np.array(a) for name, a in tree_flatten(tiny.model.parameters())}
    student = STUDENTS[kind](tiny, RECIPE, examples)
    start = student.evaluate(examples).to_json()["accepted"]
    log = Trainer(student, examples, tmp_path).run(held_back=examples)
    assert log[-1]["accepted"] > start + 0.05  # a random backbone's text can only be learnt by heart
    assert log[-1]["accepted"] == pytest.approx(student.evaluate(examples).to_json()["accepted"])
    assert all(np.array_equal(before[name], np.array(a)) for name, a in tree_flatten(tiny.model.parameters()))
    assert (tmp_path / "training.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", STUDENTS)
def test_training_goes_on_after_a_kill_with_the_same_result(tiny, features, tmp_path, kind):
    examples = read_features(features, held_back=False)[:8]
    recipe = replace(RECIPE, draft_vocab=256, epochs=2)

    class Killed(Exception):
        pass

    class Dies(Trainer):
        def _save(self, log):
            super()._save(log)
            raise Killed

    def trainer(folder, cls=Trainer, recipe=recipe):
        return cls(STUDENTS[kind](tiny, recipe, examples), examples, folder)

    whole = trainer(tmp_path / "whole")
    whole.run(held_back=[], evaluate_every=2)
    with pytest.raises(Killed):
        trainer(tmp_path / "broken", Dies).run(held_back=[], evaluate_every=2)
    again = trainer(tmp_path / "broken")
    again.run(held_back=[], evaluate_every=2)
    assert again.step == whole.step > 2
    pairs = zip(*(tree_flatten(t.student.module.parameters()) for t in (whole, again)), strict=True)
    assert all(np.array_equal(np.array(a), np.array(b)) for (_, a), (_, b) in pairs)
    with pytest.raises(DataError, match="another recipe"):
        trainer(tmp_path / "broken", recipe=replace(recipe, seed=1)).run(held_back=[])


def test_training_does_not_depend_on_the_order_in_which_answers_ended(tiny, texts, tmp_path):
    """A kill while they are generated changes it."""
    examples = list(read_examples(texts))
    plans = []
    for name, ordered in (("once", examples), ("twice", examples[5:] + examples[:5])):
        extract(tiny, ordered, tmp_path / name, kv_layers=RECIPE.kv_layers)
        seen = read_features(tmp_path / name, held_back=False)
        trainer = Trainer(HeadStudent(tiny, RECIPE, seen), seen, tmp_path)
        plans.append([[f.ids.tolist() for f in group] for group in trainer._plan])
    assert plans[0] == plans[1]


def test_a_checkpoint_belongs_to_its_texts_and_its_kind(tiny, features, tmp_path):
    examples = read_features(features, held_back=False)[:4]
    recipe = replace(RECIPE, draft_vocab=256, epochs=1)
    Trainer(HeadStudent(tiny, recipe, examples), examples, tmp_path).run(held_back=[])
    for student, others in (
        (HeadStudent(tiny, recipe, examples), examples[:3]),
        (StandaloneStudent(tiny, recipe, examples), examples),
    ):
        with pytest.raises(DataError, match="--run"):
            Trainer(student, others, tmp_path).run(held_back=[])


def test_two_processes_train_one_head(tiny, features, tmp_path):
    """Started by mlx.launch, each takes every other batch; their heads are the same at the end."""
    script = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[4])
from mtp_mlx import blas
blas.load()
import mlx.core as mx
from mlx.utils import tree_flatten
from mtp_mlx.backbone import load_backbone
from mtp_mlx.training.features import read_features
from mtp_mlx.training.recipe import Recipe
from mtp_mlx.training.trainer import Trainer
from mtp_mlx.training.unroll import HeadStudent
model, features, out = load_backbone(Path(sys.argv[1])), Path(sys.argv[2]), Path(sys.argv[3])
examples = read_features(features, held_back=False)[:8]
recipe = Recipe(kv_layers=(1, 3), draft_vocab=256, epochs=1, unroll=2, anchors=64, learning_rate=3e-3)
trainer = Trainer(HeadStudent(model, recipe, examples), examples, out / "run")
assert trainer.world.size() == 2
trainer.run(held_back=[])
weights = dict(tree_flatten(trainer.student.module.trainable_parameters()))
mx.save_safetensors(str(out / f"{trainer.world.rank()}.safetensors"), weights | {"step": mx.array(trainer.step)})
"""
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    launch = [str(Path(sys.executable).with_name("mlx.launch")), "-n", "2", "--", sys.executable]
    words = [str(tmp_path / "train.py"), str(tiny.path), str(features), str(tmp_path), str(ROOT)]
    done = subprocess.run([*launch, *words], capture_output=True, text=True, timeout=300)
    assert (tmp_path / "1.safetensors").exists(), done.stdout + done.stderr
    first, second = (mx.load(str(tmp_path / f"{rank}.safetensors")) for rank in (0, 1))
    assert first["step"].item() > 2
    assert all(np.array_equal(np.array(first[name]), np.array(second[name])) for name in first)
    start = HeadStudent(tiny, RECIPE, read_features(features, held_back=False))
    assert not np.array_equal(np.array(first["pre.weight"]), np.array(start.head.pre.weight))
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()


@pytest.mark.parametrize(
    "field",
    [
        {"learning_rate": float("nan")},
        {"learning_rate": -1.0},
        {"decay": float("inf")},
        {"warmup": 2.0},
        {"soft": 1.5},
        {"clip": 0.0},
    ],
    ids=str,
)
def test_a_recipe_that_makes_no_sense_is_refused(field):
    with pytest.raises(ValueError, match=f"{next(iter(field))} is .*: give"):
        Recipe(**field)
