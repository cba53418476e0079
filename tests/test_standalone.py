"""The standalone drafter: a model of its own that mlx-lm runs as it is, rolled back exactly, bound to its backbone."""

from __future__ import annotations

import json
import shutil

import mlx.core as mx
import numpy as np
import pytest
from conftest import make_tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx.utils import tree_flatten

from mtp_mlx.backbone import load_backbone
from mtp_mlx.decode import plain, speculative
from mtp_mlx.drafters.standalone import StandaloneDrafter
from mtp_mlx.events import Round
from mtp_mlx.pipeline import Pipeline
from mtp_mlx.request import Request
from mtp_mlx.standalone import Standalone, StandaloneConfig, load_standalone, save_standalone
from mtp_mlx.weights import WeightsError

LAYERS = (0, 3)


@pytest.fixture(scope="module")
def drafter(tiny):
    config = StandaloneConfig(LAYERS, tiny.fingerprint, tiny.vocab_hash)
    return Standalone(tiny, config, mx.arange(3000))


def rounds(events):
    return [event for event in events if isinstance(event, Round)]


def test_it_starts_as_the_backbones_layers(tiny, drafter):
    ids = mx.array([[5, 9, 1, 77]])
    x = tiny.model.model.embed_tokens(ids)
    for layer in LAYERS:
        x = tiny.model.layers[layer](x, "causal")
    expected = tiny.logits(tiny.model.model.norm(x))
    assert mx.allclose(drafter.model(ids), expected, atol=1e-4)


def test_its_embeddings_are_a_copy_that_is_not_trained(tiny, drafter):
    names = [name for name, _ in tree_flatten(drafter.trainable_parameters())]
    assert names
    assert not [name for name in names if "embed" in name or "vocab" in name]
    assert drafter.model.model.embed_tokens.weight is not tiny.model.model.embed_tokens.weight


@settings(max_examples=25)
@given(st.lists(st.integers(0, 2999), min_size=1, max_size=12), st.integers(1, 7), st.integers(0, 9))
def test_after_any_round_it_drafts_as_from_a_fresh_start(tiny, drafter, prompt, length, seed):
    """The cache after rejections against a prefill of the committed text."""

    class Checked(StandaloneDrafter):
        def draft(self, context, length):
            draft = super().draft(context, length)
            fresh = StandaloneDrafter(self.drafter, self.backbone)
            fresh.vocabulary = self.vocabulary
            fresh.vocabulary.start = lambda tokens: None
            fresh.start(context)
            again = fresh.draft(context, length)
            assert again.ids == draft.ids
            assert again.probabilities == pytest.approx(draft.probabilities, rel=1e-3)
            return draft

    events = list(speculative(tiny, prompt, drafter=Checked(drafter, tiny), max_tokens=9, draft_length=length))
    text = [id for event in rounds(events) for id in event.committed]
    assert text == [id for event in rounds(plain(tiny, prompt, max_tokens=9)) for id in event.committed]


def test_a_perfect_drafter_is_always_right(tiny):
    whole = StandaloneConfig((0, 1, 2, 3), tiny.fingerprint, tiny.vocab_hash)
    twin = StandaloneDrafter(Standalone(tiny, whole, mx.arange(tiny.args.vocab_size)), tiny)
    found = rounds(speculative(tiny, [4, 8, 15], drafter=twin, max_tokens=24, draft_length=3))
    assert sum(r.accepted for r in found) >= 0.8 * sum(len(r.drafted) for r in found)  # near-ties may turn


def test_saved_without_embeddings_and_loaded_the_same(tiny, drafter, tmp_path):
    save_standalone(drafter, tmp_path)
    stored = mx.load(str(tmp_path / "model.safetensors"))
    assert not [name for name in stored if "embed" in name]
    loaded = load_standalone(tmp_path, tiny)
    ids = mx.array([[1, 2, 3]])
    assert mx.allclose(loaded.model(ids), drafter.model(ids), rtol=2e-2, atol=2e-2)
    assert np.array_equal(np.array(loaded.draft_vocab), np.arange(3000))
    assert loaded.config == drafter.config


@pytest.mark.parametrize("damage", ["missing", "cut", "config", "weights", "backbone"])
def test_what_does_not_fit_is_refused_in_a_line(tiny, drafter, tmp_path, damage):
    folder = tmp_path / "drafter"
    save_standalone(drafter, folder)
    backbone = tiny
    if damage == "missing":
        shutil.rmtree(folder)
    elif damage == "cut":
        data = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    elif damage == "config":
        (folder / "config.json").write_text(json.dumps({"model_type": "llama"}), encoding="utf-8")
        (folder / "SHA256SUMS").unlink()
    elif damage == "weights":
        mx.save_safetensors(str(folder / "model.safetensors"), {"draft_vocab": mx.arange(5)})
        (folder / "SHA256SUMS").unlink()
    else:
        (tmp_path / "other").mkdir()
        backbone = load_backbone(make_tiny(tmp_path / "other", seed=1))
    with pytest.raises(WeightsError, match="mtp-mlx train --drafter standalone") as error:
        load_standalone(folder, backbone)
    assert "\n" not in str(error.value)


def test_the_ledger_counts_all_that_it_has_twice(tiny, drafter, tmp_path):
    save_standalone(drafter, tmp_path)
    pipeline = Pipeline(tiny, standalone=tmp_path)
    before = pipeline.ledger(rows=100).entries
    run = pipeline.start(Request("proofread", "hi", drafter="standalone", max_tokens=4))
    for _ in run:
        pass
    extra = {k: v for k, v in pipeline.ledger(rows=100).entries.items() if k not in before}
    args = tiny.args
    assert extra["its embeddings"] == args.vocab_size * args.hidden_size * 4
    assert extra["its KV cache"] == before["KV cache"] // 2  # two of four layers
    layer = sum(array.size for _, array in tree_flatten(tiny.model.layers[0].parameters()))
    assert extra["standalone drafter"] == 4 * (2 * layer + args.hidden_size)
