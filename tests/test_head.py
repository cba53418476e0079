"""The head sees in training what it sees in drafting, reads the backbone's buffers, and is bound to its backbone."""

import json
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from mtp_mlx import weights
from mtp_mlx.backbone import load_backbone
from mtp_mlx.drafters.base import Context
from mtp_mlx.drafters.mtp import MTPDrafter
from mtp_mlx.head import HeadConfig, MTPHead, load_head, save_head
from mtp_mlx.standalone import load_standalone
from mtp_mlx.training.features import Features, Prefixes
from mtp_mlx.training.unroll import collate, unrolled
from mtp_mlx.weights import WeightsError, write_sums

LAYERS = (1, 3)


@pytest.fixture
def head(tiny):
    mx.random.seed(7)
    head = MTPHead(HeadConfig.for_backbone(tiny, kv_layers=LAYERS), mx.arange(0, 4000, 3))
    head.copy_from(tiny)
    head.pre.weight = mx.random.normal(head.pre.weight.shape) * 0.2  # so that token and state both matter
    head.post.weight = mx.random.normal(head.post.weight.shape) * 0.2
    return head


def context_of(tiny, tokens, *, rows=64):
    kv = tiny.make_kv(rows)
    hidden = tiny.prefill(tokens[:-1], kv)
    return Context(list(tokens), kv, hidden, len(tokens))


def features_of(tiny, tokens, first):
    """What training caches for ``tokens`` with the first anchor at ``first``."""
    states, kv = Prefixes(tiny).states(list(tokens), needed_from=first - 1)
    views = [kv.view(layer) for layer in LAYERS]
    arrays = {
        "hidden": np.array(states),
        "best": np.array(mx.argmax(tiny.logits(states[1:]), axis=-1)),
        "keys": np.array(mx.concatenate([k[:, :, : len(tokens)] for k, _ in views])),
        "values": np.array(mx.concatenate([v[:, :, : len(tokens)] for _, v in views])),
    }
    return Features(
        np.array(tokens, np.int32), first, first, held_back=False, task="proofread", read=arrays.__getitem__
    )


@pytest.mark.parametrize("length", [2, 9])
def test_unrolled_training_gives_what_drafting_gives(tiny, head, length):
    """The same ids and probabilities, from the first anchor and from a later one of a padded batch."""
    steps, prompt = 4, [11, 4, 901, 7, 22, 3000, 5, 17, 40][:length]
    drafter = MTPDrafter(head, tiny)
    context = context_of(tiny, prompt)
    drafter.start(context)
    draft = drafter.draft(context, steps)
    ids = drafter.vocabulary.ids

    example = features_of(tiny, [*prompt, *draft.ids, 1, 1], len(prompt) - 1)
    other = features_of(tiny, [9] * 30, 20)  # a longer neighbour: padding on all sides
    batch = collate([other, example], unroll=steps)
    for step, (y, _) in enumerate(unrolled(head, tiny.embed, batch, unroll=steps)):
        chances = mx.softmax(y[1, 0] @ tiny.output_rows(ids).T)
        best = int(mx.argmax(chances))
        assert int(ids[best]) == draft.ids[step]
        assert float(chances[best]) == pytest.approx(draft.probabilities[step], rel=1e-4)

    if length > 4:  # the anchor two tokens before drafts from what was known then
        earlier = context_of(tiny, prompt[:-2])
        long = features_of(tiny, [*prompt, 1, 1, 1, 1], len(prompt) - 3)
        y, _ = unrolled(head, tiny.embed, collate([other, long], unroll=1), unroll=1)[0]
        drafter.start(earlier)
        chances = mx.softmax(y[1, 0] @ tiny.output_rows(drafter.vocabulary.ids).T)
        first = drafter.draft(earlier, 1)
        assert int(drafter.vocabulary.ids[int(mx.argmax(chances))]) == first.ids[0]
        assert float(mx.max(chances)) == pytest.approx(first.probabilities[0], rel=1e-4)


def test_state_and_keys_after_the_last_token_do_not_count(tiny, head):
    """What a rejected draft left behind in the cache is not read."""
    drafter, prompt = MTPDrafter(head, tiny), [11, 4, 901, 7]
    clean, dirty = context_of(tiny, prompt), context_of(tiny, prompt)
    tiny.forward([7, 5, 5, 5], dirty.kv, width=8)
    mx.eval(dirty.kv.view(3))
    drafter.start(clean)
    assert drafter.draft(clean, 5) == drafter.draft(dirty, 5)


def test_prompt_tokens_can_be_drafted_though_not_in_the_draft_vocabulary(tiny, head):
    drafter = MTPDrafter(head, tiny)
    context = context_of(tiny, [10, 11, 4001])
    drafter.start(context)
    assert 4001 in np.array(drafter.vocabulary.ids)
    assert 4001 not in np.array(head.draft_vocab)


def test_drafting_copies_no_keys(backbone):
    """Peak memory of a draft hardly grows with the context: K/V are the backbone's own buffers."""
    head = MTPHead(HeadConfig.for_backbone(backbone, kv_layers=(20, 29)), mx.arange(512))
    head.copy_from(backbone)
    drafter = MTPDrafter(head, backbone)

    def cost(rows):
        kv = backbone.make_kv(rows)
        for layer in kv.layers:  # as after a prefill, without its time
            layer.update_and_fetch(mx.ones((1, 3, 1, 64)), mx.ones((1, 3, 1, 64)))
        mx.eval([(layer.keys, layer.values) for layer in kv.layers])
        kv.length = rows - 8
        context = Context([1] * (rows - 7), kv, mx.ones((1, 576)), rows - 7)
        drafter.start(context)
        drafter.draft(context, 1)
        mx.clear_cache()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        drafter.draft(context, 4)
        return mx.get_peak_memory() - before, mx.get_active_memory() - before

    small, large = cost(128), cost(4096)
    one_layer = 2 * 3 * (4096 - 128) * 64 * 4  # bytes of the additional K and V rows of one layer
    assert large[0] - small[0] < one_layer / 4
    assert large[1] <= 0


def test_saved_head_drafts_the_same(tiny, head, tmp_path):
    save_head(head, tmp_path)
    loaded = load_head(tmp_path, tiny)
    assert loaded.config == head.config
    assert np.array_equal(np.array(loaded.draft_vocab), np.array(head.draft_vocab))
    context = context_of(tiny, [3, 4, 5, 6])
    drafts = []
    for one in (head, loaded):
        drafter = MTPDrafter(one, tiny)
        drafter.start(context)
        drafts.append(drafter.draft(context, 3).ids)
    assert drafts[0] == drafts[1]


@pytest.mark.parametrize("field", ["backbone", "vocab"])
def test_another_backbone_or_vocabulary_is_refused(tiny, head, tmp_path, field):
    head.config = replace(head.config, **{field: "0" * 64})
    save_head(head, tmp_path)
    with pytest.raises(WeightsError, match="another") as caught:
        load_head(tmp_path, tiny)
    assert "\n" not in str(caught.value)


def test_layers_that_the_backbone_does_not_have_are_refused(tiny, head, tmp_path):
    head.config = replace(head.config, kv_layers=(1, 99))
    save_head(head, tmp_path)
    with pytest.raises(WeightsError, match="does not have"):
        load_head(tmp_path, tiny)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("acceptance", value) for value in ({"proofread": []}, {"proofread": ["a"]}, {"proofread": 0.5}, [1])),
        *(("copy_chance", value) for value in (0.5, [], [2.0])),
        *(("rope_theta", value) for value in ("x", 0, -1)),
        *(("frequent", value) for value in (-1, 10**9, "x")),
        ("kv_layers", [0.5, 1]),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused_in_a_line(tiny, head, tmp_path, field, value):
    save_head(head, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {field: value}))
    write_sums(tmp_path)
    with pytest.raises(WeightsError) as caught:
        load_head(tmp_path, tiny)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "damage", ["no folder", "no arrays", "not json", "cut", "no field", "no ids", "ids beyond", "ids below"]
)
def test_a_damaged_head_is_refused_in_a_line(tiny, head, tmp_path, damage):
    folder = tmp_path / "head"
    if damage != "no folder":
        save_head(head, folder)
    if damage == "no arrays":
        mx.save_safetensors(str(folder / "model.safetensors"), {"x": mx.zeros(1)})
    for other, ids in (("no ids", []), ("ids beyond", [3, tiny.args.vocab_size]), ("ids below", [-1, 3])):
        if damage == other:
            arrays = {**mx.load(str(folder / "model.safetensors")), "draft_vocab": mx.array(ids, mx.int32)}
            mx.save_safetensors(str(folder / "model.safetensors"), arrays)
    if damage == "not json":
        (folder / "config.json").write_text("{")
    if damage == "no field":
        (folder / "config.json").write_text("{}")
    if damage == "cut":
        data = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    if damage != "no folder":
        write_sums(folder)  # so that the loader, not the checksum, has to notice
    with pytest.raises(WeightsError) as caught:
        load_head(folder, tiny)
    assert "\n" not in str(caught.value)


def test_the_shares_of_attention_are_those_that_it_reads_values_by(tiny, head):
    """Values weighed by the shares, per KV head of its group, are what the fused attention gives."""
    mx.random.seed(3)
    attention = head.layers[0].self_attn
    x, keys, values = mx.random.normal((1, 1, 64)), mx.random.normal((1, 2, 9, 16)), mx.random.normal((1, 2, 9, 16))
    shares = attention.shares(x, keys, offset=9)  # (1, 4, 1, 9)
    assert np.allclose(np.array(shares.sum(axis=-1)), 1, atol=1e-6)
    read = mx.concatenate([shares[:, h : h + 1] @ values[:, h // 2 : h // 2 + 1] for h in range(4)], axis=1)
    expected = attention(x, keys, values, offset=9, mask=None)
    assert np.allclose(np.array(attention.o_proj(read.reshape(1, 1, -1))), np.array(expected), atol=1e-5)


@pytest.mark.parametrize(
    ("load", "folder", "holds", "wanted"),
    [
        (load_head, weights.STANDALONE, "a standalone drafter (what --standalone is for)", "an MTP head"),
        (load_head, weights.BACKBONE, "another kind of model (what --backbone is for)", "an MTP head"),
        (load_standalone, weights.HEAD, "an MTP head (what --head is for)", "a standalone drafter"),
    ],
    ids=["standalone as head", "backbone as head", "head as standalone"],
)
def test_a_folder_of_another_kind_is_called_what_it_is(tiny, load, folder, holds, wanted):
    with pytest.raises(WeightsError) as caught:
        load(folder, tiny)
    assert str(caught.value).startswith(f"{folder} holds {holds}, not {wanted}: give {wanted}'s, or train ")


@pytest.mark.parametrize("folder", [weights.HEAD, weights.STANDALONE], ids=["head", "standalone"])
def test_drafters_weights_are_no_backbone(folder):
    with pytest.raises(WeightsError, match=r"holds an? .* \(what --.* is for\), not a language model"):
        load_backbone(folder)
