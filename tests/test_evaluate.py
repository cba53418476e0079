"""``mtp-mlx eval``: what it counts and compares, and its confidence interval."""

import json
from dataclasses import replace

import numpy as np
import pytest
from conftest import one_line

from mtp_mlx.decode import plain
from mtp_mlx.evaluate import interval
from mtp_mlx.events import Round


def test_eval_counts_and_compares(run, tmp_path):
    data = tmp_path / "texts.jsonl"
    data.write_text("".join(json.dumps({"text": t}) + "\n" for t in ("a b a b", "  ", "one two")), encoding="utf-8")
    words = ("--task", "proofread", "--data", str(data), "--drafter", "lookup", "--draft-length", "3", "--json")
    code, out, _ = run("eval", *words)
    row = json.loads(out)
    assert code == 0
    assert (row["prompts"], row["identical"], row["mismatches"]) == (2, 2, [])
    assert [skipped["line"] for skipped in row["skipped"]] == [2]
    assert row["additional_per_pass"] == pytest.approx(row["accepted"] / row["rounds"])
    assert row["accepted"] < row["tokens"] <= row["accepted"] + row["rounds"] + row["prompts"]
    assert len(row["per_position"]) <= 3
    code, out, _ = run("eval", *words, "--limit", "1")
    assert json.loads(out)["prompts"] == 1
    assert "files" not in json.loads(out)


def test_eval_of_several_files_has_each_and_their_sum(run, tmp_path):
    paths = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for path, texts in zip(paths, (("a b a b", "c d c d c d"), ("one two",)), strict=True):
        path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts), encoding="utf-8")
    words = ("--task", "proofread", "--data", *map(str, paths), "--drafter", "lookup")
    code, out, _ = run("eval", *words, "--json")
    total = json.loads(out)
    assert code == 0
    assert [row["file"] for row in total["files"]] == [str(path) for path in paths]
    for name in ("prompts", "tokens", "rounds", "accepted", "identical"):
        assert total[name] == sum(row[name] for row in total["files"])
    low, high = total["interval"]
    assert low <= total["additional_per_pass"] <= high
    code, out, _ = run("eval", *words)
    assert out.count("additional_per_pass") == 3


def test_eval_tells_people_what_became_of_a_line(run, tmp_path, monkeypatch):
    data = tmp_path / "texts.jsonl"
    data.write_text('{"text": ""}\n{"text": "a b"}\n{"text": " "}\n', encoding="utf-8")
    _, out, _ = run("eval", "--task", "proofread", "--data", str(data), "--drafter", "lookup")
    skipped = "line 1: the text is empty: write something first\n                     line 3: the text is empty"
    assert f"skipped              {skipped}" in out
    assert "{" not in out
    monkeypatch.setattr("mtp_mlx.evaluate.plain", lambda *_, **__: [Round((), (), 0, 7, "plain", 0.125, 0.0, 0.1)])
    data.write_text('{"text": "a b"}\n', encoding="utf-8")
    _, out, err = run("eval", "--task", "proofread", "--data", str(data), "--drafter", "lookup")
    assert "mismatches           line 1: differs from token 1 on, margin 0.12" in out
    assert "not plain decode's: 1 of 1 text:" in err


@pytest.mark.parametrize("content", [b"", b"not json\n", b'{"no": "text"}\n', b'{"text": 5}\n', b"\xff\n"])
def test_eval_refuses_a_bad_file_in_a_line(run, tmp_path, content):
    data = tmp_path / "texts.jsonl"
    data.write_bytes(content)
    code, _, err = run("eval", "--task", "proofread", "--data", str(data), "--drafter", "plain")
    assert code == 1
    assert one_line(err)


def test_eval_says_where_a_text_is_not_plain_decodes(run, tmp_path, monkeypatch):
    def other(*arguments, **options):
        for event in plain(*arguments, **options):
            yield replace(event, token=event.token + 1) if isinstance(event, Round) and event.token else event

    monkeypatch.setattr("mtp_mlx.evaluate.plain", other)
    data = tmp_path / "texts.jsonl"
    data.write_text('{"text": "hi"}\n', encoding="utf-8")
    code, out, err = run("eval", "--task", "proofread", "--data", str(data), "--drafter", "lookup", "--json")
    assert code == 1
    assert [row["line"] for row in json.loads(out)["mismatches"]] == [1]
    assert one_line(err)


def test_eval_of_nothing_is_no_success(run, tmp_path):
    data = tmp_path / "texts.jsonl"
    data.write_text('{"text": ""}\n{"text": "  "}\n', encoding="utf-8")
    code, _, err = run("eval", "--task", "proofread", "--data", str(data), "--drafter", "plain")
    assert code == 1
    assert one_line(err)


def test_texts_that_are_all_alike_leave_no_doubt():
    assert interval([(6, 4)] * 10) == pytest.approx([1.5, 1.5])
    assert interval([(6, 4)]) == interval([]) == []


def test_more_texts_narrow_it():
    draws = np.random.default_rng(1).integers(0, 20, size=(400, 2)) + np.array([0, 5])
    few, many = (interval([tuple(row) for row in draws[:n]]) for n in (25, 400))
    assert many[1] - many[0] < 0.5 * (few[1] - few[0])


def test_it_holds_the_truth_about_as_often_as_it_says():
    random = np.random.default_rng(2)
    rounds = random.integers(5, 30, size=(200, 30))
    accepted = random.binomial(rounds * 4, 0.3)  # 1.2 a round
    hits = 0
    for a, r in zip(accepted, rounds, strict=True):
        low, high = interval(list(zip(a.tolist(), r.tolist(), strict=True)), samples=500)
        hits += low <= 1.2 <= high
    assert 0.85 <= hits / 200 <= 0.99


def test_texts_without_a_round_say_nothing_of_acceptance():
    some = [(4, 2), (9, 3), (3, 3)]
    assert interval([*some, *[(0, 0)] * 5]) == interval(some)
    assert interval([(4, 1), (0, 0)]) == []
