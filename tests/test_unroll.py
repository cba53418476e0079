"""A head in training: what it starts from, and what it can do without."""

import math
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from lessons import RECIPE

from mtp_mlx.head import dense_weight, load_head, save_head
from mtp_mlx.training.features import read_features
from mtp_mlx.training.next_token import StandaloneStudent
from mtp_mlx.training.trainer import Trainer
from mtp_mlx.training.unroll import HeadStudent
from mtp_mlx.training.vocabulary import cross_entropy

SHARES = (0.0, 0.5, 1.0)  # of the loss, against soft targets


@pytest.mark.parametrize(("without", "unseen"), [("state", {"hidden"}), ("kv", {"keys", "values"})])
def test_a_head_does_without_what_the_recipe_says(tiny, features, without, unseen):
    """The loss does not depend on an input that is left out, and does on the same input where it is not."""

    def noisy(f):
        def read(name):
            array = f.read(name)
            return np.random.default_rng(0).normal(size=array.shape).astype(array.dtype) if name in unseen else array

        return replace(f, read=read)

    examples = read_features(features, held_back=False)[:4]
    other = [noisy(f) for f in examples]
    hard = replace(RECIPE, soft=0.0)  # the backbone's probabilities come from its states
    for recipe in (replace(hard, without=without), hard):
        student = HeadStudent(tiny, recipe, examples)
        equal = student.loss(examples, 0.0).item() == student.loss(other, 0.0).item()
        assert equal == (recipe.without == without)


def test_soft_targets_are_the_backbones_probabilities():
    """With chances of a quarter and three quarters, even odds cost ln 2, and the right odds their own entropy."""
    teacher, target, weight = mx.array([[0.0, math.log(3)]]), mx.array([1]), mx.array([1.0])
    even = cross_entropy(mx.zeros((1, 2)), target, weight, teacher=teacher, soft=1.0)
    right = cross_entropy(teacher + 5, target, weight, teacher=teacher, soft=1.0)
    assert even.item() == pytest.approx(math.log(2))
    assert right.item() == pytest.approx(-0.25 * math.log(0.25) - 0.75 * math.log(0.75))
    half = cross_entropy(teacher, target, weight, teacher=teacher, soft=0.5)
    assert half.item() == pytest.approx((right.item() - math.log(0.75)) / 2)


@pytest.mark.parametrize("kind", [HeadStudent, StandaloneStudent])
def test_the_loss_is_softer_by_the_share_that_the_recipe_says(tiny, features, kind):
    examples = read_features(features, held_back=False)[:4]
    losses = [kind(tiny, replace(RECIPE, soft=soft, regression=0.0), examples).loss(examples, 0.0) for soft in SHARES]
    hard, half, soft = (loss.item() for loss in losses)
    assert half == pytest.approx((hard + soft) / 2, rel=1e-4)
    assert hard != pytest.approx(soft, rel=1e-3)


def test_a_head_starts_without_copied_layers_when_asked(tiny, features):
    examples = read_features(features, held_back=False)[:4]
    source = dense_weight(tiny.model.layers[RECIPE.kv_layers[0]].self_attn.q_proj)
    for without, copied in (("nothing", True), ("copies", False)):
        head = HeadStudent(tiny, replace(RECIPE, without=without), examples).head
        assert np.array_equal(np.array(head.layers[0].self_attn.q_proj.weight), np.array(source)) == copied
        assert np.array_equal(np.array(head.post.weight), np.eye(head.config.hidden_size))


def test_a_trained_head_is_gone_on_from(tiny, features, tmp_path):
    examples = read_features(features, held_back=False)[:8]
    recipe = replace(RECIPE, epochs=2)
    first = HeadStudent(tiny, recipe, examples)
    Trainer(first, examples, tmp_path / "first").run(held_back=examples)
    save_head(first.head, tmp_path / "head")
    second = HeadStudent(tiny, recipe, start=load_head(tmp_path / "head", tiny))
    assert np.array_equal(np.array(second.head.draft_vocab), np.array(first.head.draft_vocab))
    loss = [float(student.loss(examples[:2], 0.0)) for student in (first, second)]
    assert loss[0] == pytest.approx(loss[1], rel=1e-2)  # float16 in the file
    before = np.array(second.head.pre.weight)
    Trainer(second, examples, tmp_path / "second").run(held_back=[])
    assert not np.array_equal(before, np.array(second.head.pre.weight))
