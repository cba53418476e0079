"""Training: on-policy texts, cached features, a trainer that learns and resumes; only the head changes."""

import json
import subprocess
import sys
from dataclasses import asdict, replace
from itertools import takewhile
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mtp_mlx.decode import plain, speculative
from mtp_mlx.drafters.base import Context
from mtp_mlx.drafters.mtp import MTPDrafter
from mtp_mlx.drafters.standalone import StandaloneDrafter
from mtp_mlx.events import Round
from mtp_mlx.head import dense_weight, load_head, save_head
from mtp_mlx.jsonl import JsonlError
from mtp_mlx.prompt import encode
from mtp_mlx.standalone import load_standalone
from mtp_mlx.tasks import TASKS
from mtp_mlx.training.acceptance import Acceptance
from mtp_mlx.training.features import extract, held_back_features, read_features
from mtp_mlx.training.job import train, written
from mtp_mlx.training.next_token import StandaloneStudent
from mtp_mlx.training.recipe import Recipe
from mtp_mlx.training.texts import (
    DataError,
    Example,
    choose,
    document,
    generate,
    is_held_back,
    read_examples,
    read_rows,
)
from mtp_mlx.training.topics import requests
from mtp_mlx.training.trainer import Trainer
from mtp_mlx.training.unroll import HeadStudent

ROOT = Path(__file__).resolve().parent.parent
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "home"]
RECIPE = Recipe(
    kv_layers=(1, 3), standalone_layers=(0, 3), draft_vocab=512, epochs=6, unroll=2, anchors=128, learning_rate=3e-3
)


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
    extract(tiny, list(read_examples(texts)), folder, kv_layers=RECIPE.kv_layers, prompts=True)
    return folder


def test_rows_are_read_once_and_bad_lines_are_named(data, tmp_path):
    assert len(read_rows(data)) == len({(r["task"], r["text"]) for r in rows(24)})
    (data / "b.jsonl").write_text('{"task": "proofread", "text": "x"}\n{broken\n', encoding="utf-8")
    with pytest.raises(JsonlError, match=r"b\.jsonl, line 2"):
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


def test_sampled_texts_are_those_of_their_row_whatever_is_generated_beside_it(tiny, tmp_path):
    """A kill changes what is."""
    answers = []
    for name, wanted in (("all", rows(6)), ("two", rows(2)), ("again", rows(2))):
        generate(tiny, wanted, tmp_path / name, temperature=1.0)
        answers.append({example.id: example.answer[:8] for example in read_examples(tmp_path / name)})
    assert answers[1] == answers[2] == {id: answers[0][id] for id in answers[1]}
    generate(tiny, rows(2), tmp_path / "greedy")
    assert {example.id: example.answer[:8] for example in read_examples(tmp_path / "greedy")} != answers[1]


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
    for recipe in (replace(RECIPE, without=without), RECIPE):
        student = HeadStudent(tiny, recipe, examples)
        equal = student.loss(examples, 0.0).item() == student.loss(other, 0.0).item()
        assert equal == (recipe.without == without)


def test_a_head_starts_without_copied_layers_when_asked(tiny, features):
    examples = read_features(features, held_back=False)[:4]
    source = dense_weight(tiny.model.layers[RECIPE.kv_layers[0]].self_attn.q_proj)
    for without, copied in (("nothing", True), ("copies", False)):
        head = HeadStudent(tiny, replace(RECIPE, without=without), examples).head
        assert np.array_equal(np.array(head.layers[0].self_attn.q_proj.weight), np.array(source)) == copied
        assert np.array_equal(np.array(head.post.weight), np.eye(head.config.hidden_size))


@pytest.mark.parametrize("options", [{"drafter": "standalone"}, {"from_head": ROOT}])
def test_only_a_new_head_can_do_without_something(tiny, data, tmp_path, options):
    recipe = replace(RECIPE, without="state")
    with pytest.raises(DataError, match="--without"):
        train(data, tmp_path, tmp_path, backbone=tiny.path, recipe=recipe, per_task=1, **options)


def test_the_last_token_of_a_budget_is_never_drafted():
    """Three tokens, every draft right: the second pass may draft one token, or none where the budget ends."""
    for cut, additional in ((False, 2 / 2), (True, 1 / 2)):
        counted = Acceptance(1)
        counted.add("proofread", np.ones((3, 1), bool), cut=cut)
        assert counted.to_json()["additional"]["proofread"] == [additional]


def test_what_training_is_measured_on_is_a_few_of_each_task(tiny, texts, tmp_path):
    held_back = [replace(example, held_back=True) for example in read_examples(texts)]
    extract(tiny, held_back, tmp_path, kv_layers=RECIPE.kv_layers)
    assert len(read_features(tmp_path, held_back=True)) == 24
    assert [f.task for f in held_back_features(tmp_path, a_task=5)] == ["proofread"] * 5 + ["summarize"] * 5


def test_evaluation_counts_what_drafting_accepts(tiny, features):
    """Teacher forcing from every position of an answer against the drafter itself."""
    examples = [f.answer_only() for f in read_features(features, held_back=False)][:4]
    recipe = replace(RECIPE, unroll=3)
    head = HeadStudent(tiny, recipe, examples)
    mx.eval(head.head.parameters())
    standalone = StandaloneStudent(tiny, recipe, examples)
    for student, drafter in (
        (head, MTPDrafter(head.head, tiny)),
        (standalone, StandaloneDrafter(standalone.drafter, tiny)),
    ):
        accepted = []
        for f in examples:
            ids = f.ids.tolist()
            for t in range(f.first, len(ids) - 1):
                kv = tiny.make_kv(len(ids) + 8)
                hidden = tiny.prefill(ids[:t], kv)
                context = Context(ids[: t + 1], kv, hidden, f.first + 1)
                drafter.start(replace(context, tokens=ids[: f.first + 1]))
                drafted = drafter.draft(context, 3).ids
                accepted.append(next((i for i, id in enumerate(drafted) if ids[t + 1 + i : t + 2 + i] != [id]), 3))
        by_task = student.evaluate(examples).to_json()
        tasks = {f.task for f in examples}
        assert set(by_task["by_task"]) == tasks
        counted = Acceptance(3)
        start = 0
        for f in examples:
            mine = accepted[start : start + f.anchors]
            start += f.anchors
            counted.add(f.task, np.arange(3) < np.array(mine)[:, None])
        assert counted.to_json()["accepted"] == pytest.approx(by_task["accepted"], abs=0.02)


def test_additional_tokens_per_pass_are_those_of_decoding(tiny, features):
    """Counted by teacher forcing, for each draft length, against the decode loop itself."""
    head = HeadStudent(tiny, replace(RECIPE, unroll=3), examples := read_features(features, held_back=False)[:6])
    mx.eval(head.head.parameters())
    compared = 0
    for f in (f.answer_only() for f in examples):
        prompt, answer = f.ids[: f.first + 1].tolist(), f.ids[f.first + 1 :].tolist()
        counted = head.evaluate([f]).to_json()["additional"][f.task]
        for length in (1, 2, 3):
            run = speculative(
                tiny, prompt, drafter=MTPDrafter(head.head, tiny), max_tokens=len(answer), draft_length=length
            )
            rounds = [event for event in run if isinstance(event, Round)]
            if [id for r in rounds for id in r.committed] == answer:  # no near-tie fell the other way
                assert counted[length - 1] == pytest.approx(sum(r.accepted for r in rounds) / len(rounds))
                compared += 1
    assert compared > len(examples)


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
examples = read_features(features, held_back=False)
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
