"""Many kinds of training prompt from a folder of texts: each reproducible, none of it from held-back texts."""

import json
from collections import Counter

import pytest

from mtp_mlx.tasks import TASKS, TEXT
from mtp_mlx.training.texts import choose, is_held_back, read_rows, wording
from mtp_mlx.training.topics import GENRES, TOPICS, requests
from mtp_mlx.training.variety import from_written, vary
from mtp_mlx.training.wordings import WORDINGS


@pytest.fixture
def folder(tmp_path):
    rows = [
        {"id": f"doc{i}-{j}", "task": "summarize", "text": f"Ana: message {i} {j} here\nBen: and {i} {j} back"}
        for i in range(60)
        for j in range(2)
    ]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    lines = [f"message {i} {j} here" for i in range(60) for j in range(2)] + [f"A line number {i}." for i in range(200)]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def varied(folder):
    own = read_rows(folder)
    return list(vary(own, folder, held_back=[row["text"] for row in own if is_held_back(row)]))


def test_kinds_wordings_and_ids(folder):
    rows = varied(folder)
    assert rows == varied(folder)
    assert len({row["id"] for row in rows}) == len(rows)
    assert set(Counter(row["kind"] for row in rows)) == {"chats", "typos lines", "stacks lines"}
    other = sum(row["wording"] > 0 for row in rows) / len(rows)
    assert 0.2 < other < 0.5
    stacks = [row["text"] for row in rows if row["kind"] == "stacks lines"]
    assert {text.count("\n") for text in stacks} >= {0, 1, 2, 3}


def test_messages_of_held_back_texts_stay_unseen(folder):
    own = read_rows(folder)
    held = {f"message {i} {j} here" for i in range(60) for j in range(2) if is_held_back({"id": f"doc{i}-{j}"})}
    assert held, "the test needs a held-back document"
    made = [row["text"] for row in varied(folder) if row["kind"] != "chats"]
    assert not [text for text in made for line in held if line in text]
    assert [row for row in own if is_held_back(row)]


def test_a_small_choice_has_every_kind_in_turn(folder):
    few = choose(varied(folder), per_task=10)
    assert Counter(row["kind"] for row in few if row["task"] == "summarize") == {"chats": 5, "stacks lines": 5}
    more = choose(varied(folder), per_task=30)
    assert {row["id"] for row in few} <= {row["id"] for row in more}


def test_each_wording_holds_the_text_once_and_the_first_is_the_products():
    for name, tasks in WORDINGS.items():
        assert all(sum(content.count(TEXT) for _, content in task.messages) == 1 for task in tasks)
        assert all(task.messages[-1][1].count(TEXT) == 1 for task in tasks)
        assert name not in TASKS or tasks[0] is TASKS[name]
    assert wording({"task": "proofread", "wording": 2}) is WORDINGS["proofread"][2]


def test_requests_are_held_back_by_topic():
    rows = requests()
    assert len(rows) == len(TOPICS) * len(GENRES) == len({row["id"] for row in rows})
    sides = {row["document"]: set() for row in rows}
    for row in rows:
        sides[row["document"]].add(is_held_back(row))
    assert all(len(side) == 1 for side in sides.values())


def test_what_the_backbone_wrote_becomes_texts_for_both_tasks():
    text = "The bus was late. We waited for an hour! Then it rai"
    proofread, summarize = from_written("write-1-2", "write-1", text, {})
    assert (proofread["task"], summarize["task"]) == ("proofread", "summarize")
    assert summarize["text"] == "The bus was late. We waited for an hour!"
    assert proofread["document"] == summarize["document"] == "write-1"
    assert from_written("write-1-2", "write-1", "cut off before its first", {}) == []
