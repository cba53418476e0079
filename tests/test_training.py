"""Training: on-policy texts, cached features, a trainer that learns and resumes; only the head changes."""

import json
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mtp_mlx.decode import plain
from mtp_mlx.events import Round
from mtp_mlx.head import load_head, save_head
from mtp_mlx.prompt import encode
from mtp_mlx.tasks import PROOFREAD, TASKS
from mtp_mlx.training.features import extract, read_features
from mtp_mlx.training.job import train
from mtp_mlx.training.texts import (
    DataError,
    choose,
    document,
    generate,
    is_held_back,
    read_examples,
    read_rows,
)
from mtp_mlx.training.trainer import Recipe, Trainer, evaluate

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "home"]
RECIPE = Recipe(kv_layers=(1, 3), draft_vocab=512, epochs=6, unroll=2, anchors=128, learning_rate=3e-3)


def rows(count):
    """Short texts of two tasks, four to a document."""
    rng = np.random.default_rng(0)
    return [
        {
            "id": f"doc{i // 4}-{i % 4}",
            "task": ("proofread", "summarize")[i % 2],
            "text": " ".join(rng.choice(WORDS, 4)),
        }
        for i in range(count)
    ]


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(24)), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def texts(tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    generate(tiny, rows(24), path)
    return path


@pytest.fixture(scope="module")
def features(tiny, texts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("features")
    extract(tiny, texts, folder, kv_layers=RECIPE.kv_layers)
    return folder


def test_rows_are_read_once_and_bad_lines_are_named(data, tmp_path):
    assert len(read_rows(data)) == len({(r["task"], r["text"]) for r in rows(24)})
    (data / "b.jsonl").write_text('{"task": "proofread", "text": "x"}\n{broken\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"b\.jsonl, line 2"):
        read_rows(data)
    with pytest.raises(DataError):
        read_rows(tmp_path / "nowhere")


def test_a_document_is_held_back_whole():
    many = [{"id": f"doc{i}-{part}-0", "task": "proofread", "text": "x"} for i in range(400) for part in range(3)]
    by_document = {}
    for row in many:
        by_document.setdefault(document(row), set()).add(is_held_back(row))
    assert len(by_document) == 400
    assert all(len(sides) == 1 for sides in by_document.values())
    share = sum(True in sides for sides in by_document.values()) / 400
    assert 0.02 < share < 0.12


def test_choice_is_the_same_at_every_run_and_grows():
    few, more = choose(rows(24), per_task=3), choose(rows(24), per_task=6)
    assert few == choose(list(reversed(rows(24))), per_task=3)
    assert [row["task"] for row in few].count("proofread") == 3
    assert {row["id"] for row in few} <= {row["id"] for row in more}


def test_answers_are_the_backbones_own(tiny, texts):
    examples = list(read_examples(texts))
    assert sorted(e.id for e in examples) == sorted(row["id"] for row in rows(24))
    texts_of = {row["id"]: row["text"] for row in rows(24)}
    same = 0
    for e in examples[:6]:
        prompt = encode(tiny.tokenizer, TASKS[e.task], texts_of[e.id])
        assert e.prompt == prompt.ids
        budget = TASKS[e.task].default_max_tokens(prompt.text_tokens)
        events = plain(tiny, e.prompt, max_tokens=min(budget, 16))
        ids = [i for event in events if isinstance(event, Round) for i in event.committed]
        same += e.answer[:16] == ids
    assert same >= 5  # batched kernels may turn a near-tie


def test_generation_goes_on_after_a_kill(tiny, texts, tmp_path):
    lines = texts.read_text(encoding="utf-8").splitlines(keepends=True)
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(lines[:20]) + lines[20][:25], encoding="utf-8")  # killed while writing line 21
    generate(tiny, rows(24), path)
    assert path.read_text(encoding="utf-8").startswith("".join(lines[:20]))
    examples = list(read_examples(path))
    assert sorted(e.id for e in examples) == sorted(row["id"] for row in rows(24))


def test_texts_that_are_empty_or_long_are_left_out(tiny, tmp_path):
    odd = [{"id": "1", "task": "proofread", "text": " "}, {"id": "2", "task": "proofread", "text": "a " * 600}]
    generate(tiny, odd, tmp_path / "texts.jsonl")
    assert list(read_examples(tmp_path / "texts.jsonl")) == []


def test_features_are_what_one_pass_computes(tiny, texts, features):
    examples = {tuple(e.prompt + e.answer): e for e in read_examples(texts)}
    seen = [f for held in (False, True) for f in read_features(features, held_back=held)]
    assert len(seen) == len(examples)
    for f in seen[:3]:
        e = examples[tuple(f.ids.tolist())]
        assert f.first == len(e.prompt) - 1
        kv = tiny.make_kv(len(f.ids))
        states = tiny.prefill(f.ids.tolist(), kv, last=len(f.ids))
        np.testing.assert_allclose(f.hidden, np.array(states)[f.first - 1 :], atol=2e-2, rtol=2e-2)
        keys, _ = kv.view(RECIPE.kv_layers[1])
        np.testing.assert_allclose(f.keys[1], np.array(keys[0, :, : len(f.ids)]), atol=2e-2, rtol=2e-2)


def test_features_of_other_layers_are_refused(tiny, texts, features):
    with pytest.raises(DataError, match="--run"):
        extract(tiny, texts, features, kv_layers=(0, 1))


def test_it_learns_and_only_the_head_changes(tiny, features, tmp_path):
    train_set = list(read_features(features, held_back=False))
    before = {name: np.array(a) for name, a in tree_flatten(tiny.model.parameters())}
    trainer = Trainer(tiny, RECIPE, train_set, tmp_path)
    start = evaluate(tiny, trainer.head, train_set, unroll=2)["accepted"]
    log = trainer.run(held_back=train_set)
    assert log[-1]["accepted"] > start + 0.05  # a random backbone's text can only be learnt by heart
    assert all(np.array_equal(before[name], np.array(a)) for name, a in tree_flatten(tiny.model.parameters()))


def test_training_goes_on_after_a_kill_with_the_same_result(tiny, features, tmp_path):
    train_set = list(read_features(features, held_back=False))[:8]
    recipe = Recipe(kv_layers=(1, 3), draft_vocab=256, epochs=2, unroll=2, anchors=128)

    class Killed(Exception):
        pass

    class Dies(Trainer):
        def _save(self, log):
            super()._save(log)
            raise Killed

    whole = Trainer(tiny, recipe, train_set, tmp_path / "whole")
    whole.run(held_back=[], evaluate_every=2)
    broken = Dies(tiny, recipe, train_set, tmp_path / "broken")
    with pytest.raises(Killed):
        broken.run(held_back=[], evaluate_every=2)
    again = Trainer(tiny, recipe, train_set, tmp_path / "broken")
    again.run(held_back=[], evaluate_every=2)
    assert again.step == whole.step
    pairs = zip(tree_flatten(whole.head.parameters()), tree_flatten(again.head.parameters()), strict=True)
    assert all(np.array_equal(np.array(a), np.array(b)) for (_, a), (_, b) in pairs)
    with pytest.raises(DataError, match="another recipe"):
        Trainer(tiny, RECIPE, train_set, tmp_path / "broken").run(held_back=[])


def test_the_whole_command_makes_a_head_that_loads(tiny, data, tmp_path):
    recipe = Recipe(kv_layers=(1, 3), draft_vocab=256, epochs=1, unroll=2, anchors=256)
    log = train(data, tmp_path / "run", tmp_path / "head", backbone=tiny.path, recipe=recipe, per_task=3)
    held_back = {row["text"] for row in rows(24) if is_held_back(row)}
    for task in TASKS:
        for line in (tmp_path / "run" / f"held-back-{task}.jsonl").read_text(encoding="utf-8").splitlines():
            assert json.loads(line)["text"] in held_back
    head = load_head(tmp_path / "head", tiny)
    assert head.config.kv_layers == (1, 3)
    assert tiny.eos <= set(np.array(head.draft_vocab).tolist())
    kept = json.loads((tmp_path / "head" / "training.json").read_text(encoding="utf-8"))
    assert kept["log"] == log
    assert PROOFREAD.name in log[-1]["by_task"] or log[-1]["by_task"] == {}
    assert head.draft_vocab.dtype == mx.int32


def test_a_trained_head_is_gone_on_from(tiny, features, tmp_path):
    train_set = list(read_features(features, held_back=False))[:8]
    first = Trainer(tiny, replace(RECIPE, epochs=2), train_set, tmp_path / "first")
    first.run(held_back=train_set)
    save_head(first.head, tmp_path / "head")
    second = Trainer(tiny, RECIPE, train_set, tmp_path / "second", start=load_head(tmp_path / "head", tiny))
    assert np.array_equal(np.array(second.head.draft_vocab), np.array(first.head.draft_vocab))
    loss = [float(trainer._loss(train_set[:2], 0.0)) for trainer in (first, second)]
    assert loss[0] == pytest.approx(loss[1], rel=1e-2)  # float16 in the file
    before = np.array(second.head.pre.weight)
    second.run(held_back=[])
    assert not np.array_equal(before, np.array(second.head.pre.weight))
