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
from mtp_mlx.training import job
from mtp_mlx.training.acceptance import Acceptance
from mtp_mlx.training.job import LEAST, prepare, train, written
from mtp_mlx.training.texts import DataError, Example, choose, is_held_back, read_examples
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


@pytest.mark.parametrize(
    ("count", "per_task", "asked", "said"),
    [
        (24, None, LEAST, "up to 24 prompts made of {data}, and up to 200 of its own"),
        (300, None, 300, "up to 300 prompts made of {data}, and up to 1,200 of its own"),
        (7000, None, 6552, "up to 7,000 prompts made of {data}, and up to 26,208 of its own"),
        (24, 3, 3, "up to 6 prompts made of {data}, and up to 12 of its own"),
        (24, 200, 200, "up to 24 prompts made of {data}, and up to 800 of its own"),
    ],
)
def test_it_asks_itself_about_as_much_as_there_are_texts_and_says_so(
    tmp_path, monkeypatch, capsys, count, per_task, asked, said
):
    data, calls = tmp_path / "data", []
    data.mkdir()
    mine = [{"id": f"{i}", "task": ("proofread", "summarize")[i % 2], "text": f"text {i}"} for i in range(count)]
    (data / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in mine), encoding="utf-8")
    monkeypatch.setattr(job, "generate", lambda model, rows, path, **_: calls.append([row["task"] for row in rows]))
    monkeypatch.setattr(job, "written", lambda *_: [])
    prepare(data, tmp_path / "run", None, per_task=per_task)
    assert calls[:2] == [["write"] * asked] * 2
    assert len(calls[2]) == min(count, count if per_task is None else 2 * per_task)
    (line,) = capsys.readouterr().err.splitlines()
    assert said.format(data=data) in line and "--per-task N" in line


def test_the_fewest_requests_have_topics_that_are_held_back():
    assert sum(map(is_held_back, choose(requests(), per_task=LEAST))) == 6


def test_messages_a_line_are_enough(tiny, tmp_path):
    (tmp_path / "data").mkdir()
    lines = [f"The {word} sat on a mat, and the dog ran home." for word in ("cat", "bat", "rat", "hen")]
    (tmp_path / "data" / "mine.txt").write_text("\n".join([*lines, "short", ""]), encoding="utf-8")
    recipe = replace(RECIPE, draft_vocab=256, epochs=1, anchors=256)
    train(tmp_path / "data", tmp_path / "run", tmp_path / "head", backbone=tiny.path, recipe=recipe, per_task=4)
    assert load_head(tmp_path / "head", tiny).config.backbone == tiny.fingerprint
    ids = {example.id for example in read_examples(tmp_path / "run" / "texts.jsonl")}
    mine = {f"typos-mine-{i}" for i in range(4)}  # of what the model wrote there are texts to proofread, too
    assert mine & ids and {id for id in ids if id.startswith("typos")} <= mine


@pytest.mark.parametrize("files", [{}, {"a.txt": "short\n\n"}, {"a.jsonl": '{"task": "other", "text": "a text"}\n'}])
def test_a_refusal_says_what_to_give_and_leaves_no_folder(tiny, tmp_path, files):
    data, options = tmp_path / "data", {"backbone": tiny.path, "recipe": RECIPE, "per_task": None}
    data.mkdir()
    for name, text in files.items():
        (data / name).write_text(text, encoding="utf-8")
    with pytest.raises(
        DataError, match=r"\.jsonl files .* or \.txt files \(a message a line, 8 to 400 char"
    ) as refused:
        train(data, tmp_path / "run", tmp_path / "new" / "head", **options)
    assert "\n" not in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    (tmp_path / "mine").mkdir()
    with pytest.raises(DataError):
        train(data, tmp_path / "run", tmp_path / "mine", **options)
    assert (tmp_path / "mine").is_dir()  # it was there before


def test_the_whole_command_makes_a_head_that_loads(tiny, data, tmp_path):
    recipe = replace(RECIPE, kv_layers=(), standalone_layers=(), draft_vocab=256, epochs=1, anchors=256)
    options = {"backbone": tiny.path, "recipe": recipe, "per_task": 3}
    log = train(data, tmp_path / "run", tmp_path / "head", **options)
    held_back = {row["text"] for row in rows(24) if is_held_back(row)}
    for task in TASKS:
        for line in (tmp_path / "run" / f"held-back-{task}.jsonl").read_text(encoding="utf-8").splitlines():
            assert json.loads(line)["text"] in held_back
    head = load_head(tmp_path / "head", tiny)
    assert head.config.kv_layers == (2, 3)  # of the four there are
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


def test_what_goes_on_can_be_averaged_with_what_it_was(tiny, data, tmp_path):
    """Another share of the same training takes no other training."""
    recipe = replace(RECIPE, draft_vocab=256, epochs=1, anchors=256)
    options = {"backbone": tiny.path, "per_task": 3}
    train(data, tmp_path / "run", tmp_path / "old", recipe=recipe, **options)
    options["from_head"] = tmp_path / "old"
    whole = train(data, tmp_path / "on", tmp_path / "new", recipe=recipe, **options)
    mixed = train(data, tmp_path / "on", tmp_path / "mixed", recipe=replace(recipe, share=0.25), **options)
    assert mixed[:-1] == whole and mixed[-1]["share"] == 0.25
    old, new, average = (mx.load(str(tmp_path / name / "model.safetensors")) for name in ("old", "new", "mixed"))
    changed = 0
    for name, weight in average.items():
        wanted = 0.25 * new[name].astype(mx.float32) + 0.75 * old[name].astype(mx.float32)
        assert mx.allclose(weight.astype(mx.float32), wanted, atol=1e-3), name
        changed += not mx.array_equal(old[name], new[name]).item()
    assert changed > 5


@pytest.mark.parametrize("options", [{}, {"drafter": "standalone", "from_head": ROOT}])
def test_a_share_is_of_a_head_that_goes_on(tiny, data, tmp_path, options):
    with pytest.raises(DataError, match="--share"):
        train(data, tmp_path, tmp_path, backbone=tiny.path, recipe=replace(RECIPE, share=0.5), per_task=1, **options)
