"""On-policy texts: what is read, what is held back, answers that are the backbone's own, and a kill."""

import pytest
from lessons import rows

from mtp_mlx.decode import plain
from mtp_mlx.events import Round
from mtp_mlx.jsonl import JsonlError
from mtp_mlx.prompt import encode
from mtp_mlx.tasks import TASKS
from mtp_mlx.training.texts import (
    DataError,
    choose,
    document,
    generate,
    is_held_back,
    read_examples,
    read_rows,
)


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
