"""Cached features are what one pass of the backbone computes, and belong to the layers they are of."""

from dataclasses import replace
from itertools import takewhile

import mlx.core as mx
import numpy as np
import pytest
from lessons import RECIPE

from mtp_mlx.prompt import encode
from mtp_mlx.tasks import TASKS
from mtp_mlx.training.features import extract, held_back_features, read_features
from mtp_mlx.training.texts import (
    DataError,
    read_examples,
)


def prefix_of(backbone, example):
    """What all prompts of its task begin with."""
    others = [encode(backbone.tokenizer, TASKS[example.task], text).ids for text in ("zebra", "9 o'clock")]
    return list(takewhile(lambda pair: pair[0] == pair[1], zip(*others, strict=False)))


def test_features_are_what_one_pass_computes(tiny, texts, features):
    examples = {tuple(e.prompt + e.answer): e for e in read_examples(texts)}
    seen = [f for held in (False, True) for f in read_features(features, held_back=held)]
    assert len(seen) == len(examples)
    for f in seen[:3]:
        e = examples[tuple(f.ids.tolist())]
        assert f.first == len(e.prompt) - 1
        kv = tiny.make_kv(len(f.ids))
        states = tiny.prefill(f.ids.tolist(), kv, last=len(f.ids))
        assert f.start == e.start == len(prefix_of(tiny, e))
        np.testing.assert_allclose(f.hidden, np.array(states)[f.start - 1 :], atol=2e-2, rtol=2e-2)
        assert (f.best == np.array(mx.argmax(tiny.logits(states[f.start :]), axis=-1))).mean() > 0.9  # near-ties
        answer = f.answer_only()
        assert (answer.start, answer.anchors) == (f.first, len(e.answer))
        np.testing.assert_array_equal(answer.hidden, f.hidden[f.first - f.start :])
        assert (answer.best[:-1] == e.answer).mean() > 0.9
        keys, _ = kv.view(RECIPE.kv_layers[1])
        np.testing.assert_allclose(f.keys[1], np.array(keys[0, :, : len(f.ids)]), atol=2e-2, rtol=2e-2)


def test_features_of_other_layers_are_refused(tiny, texts, features):
    with pytest.raises(DataError, match="--run"):
        extract(tiny, list(read_examples(texts)), features, kv_layers=(0, 1))


def test_what_training_is_measured_on_is_a_few_of_each_task(tiny, texts, tmp_path):
    held_back = [replace(example, held_back=True) for example in read_examples(texts)]
    extract(tiny, held_back, tmp_path, kv_layers=RECIPE.kv_layers)
    assert len(read_features(tmp_path, held_back=True)) == 24
    assert [f.task for f in held_back_features(tmp_path, a_task=5)] == ["proofread"] * 5 + ["summarize"] * 5
