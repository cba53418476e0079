"""The iterator: each answer is the one that the text gets alone, and a text that cannot be worked on is an error."""

import gc
from dataclasses import replace
from itertools import count

import mlx.core as mx
import pytest

from mtp_mlx import batch
from mtp_mlx.batch.answers import fitting, ledger, run
from mtp_mlx.batch.pace import Pace
from mtp_mlx.pipeline import Pipeline
from mtp_mlx.profiles import ProfileError, get
from mtp_mlx.request import Request

TEXTS = ["hello wrld", "", "a b c a b c", "x", "half \ud800", "one two three " * 20, "", "y"]
REQUEST = Request(task="proofread", text="", drafter="lookup", max_tokens=6)


@pytest.fixture(scope="module")
def pipeline(tiny):
    return Pipeline(tiny)


def test_answers_are_those_of_the_texts_alone(pipeline):
    texts = ["hello wrld", "a b c a b c", "x"]
    results = dict(run(enumerate(texts), pipeline=pipeline, request=REQUEST, timings=False))
    for i, text in enumerate(texts):
        alone = pipeline.start(Request(task="proofread", text=text, drafter="lookup", max_tokens=6))
        for _ in alone:
            pass
        trace = alone.trace
        assert results[i]["text"] == trace.text
        assert results[i]["tokens"] == trace.stats.tokens == 6
        assert results[i]["rounds"] == trace.stats.rounds
        assert results[i]["finish"] == "budget"
        assert "seconds" not in results[i]


def test_a_text_that_cannot_be_worked_on_does_not_stop_the_others(pipeline):
    texts = ["", "half \ud800", "word " * 200_000, None, b"bytes", 5, "fine"]
    for size in (1, 2):
        results = dict(run(enumerate(texts), pipeline=pipeline, request=REQUEST, batch=size))
        assert [results[i].keys() for i in range(6)] == [{"error"}] * 6
        assert all("\n" not in results[i]["error"] for i in range(6))
        assert results[6]["seconds"] > 0


def test_keys_are_the_callers_own_whatever_they_are(pipeline):
    """Equal ones, and such as are in no dictionary."""
    pairs = [("k", "hello wrld"), ("k", "a b c a b c"), (["k"], "x"), ("k", "")]
    one, many = ([*run(pairs, pipeline=pipeline, request=REQUEST, timings=False, batch=size)] for size in (1, 2))
    assert [key for key, _ in one] == ["k", "k", ["k"], "k"]
    assert sorted(map(repr, many)) == sorted(map(repr, one))


@pytest.mark.parametrize("size", [0, -3, 2.5, "2", None])
def test_a_number_at_once_that_is_none_is_refused(pipeline, size):
    with pytest.raises(ValueError, match="at once"):
        next(run([("k", "x")], pipeline=pipeline, request=REQUEST, batch=size))


def test_a_batch_answers_every_text_the_same(pipeline):
    """This model has no near-ties here; 3 do not fill the last round."""
    one = dict(run(enumerate(TEXTS), pipeline=pipeline, request=REQUEST, timings=False))
    many = dict(run(enumerate(TEXTS), pipeline=pipeline, request=REQUEST, timings=False, batch=3))
    assert many == one
    assert [key for key, result in one.items() if "error" in result] == [1, 4, 6]


def test_a_batch_stops_with_the_texts_in_hand(pipeline):
    done = []
    for key, _ in run(
        enumerate(TEXTS[:1] * 20), pipeline=pipeline, request=REQUEST, batch=2, stopping=lambda: bool(done)
    ):
        done.append(key)
    assert 2 <= len(done) <= 4


def test_a_profile_allows_as_many_as_fit_and_says_so(pipeline, monkeypatch):
    rows = 1 << 18
    budget = get("pixel-9").budget_bytes

    def takes(batch):
        return ledger(pipeline, batch=batch, capacity=rows, width=2).total

    fit = fitting(pipeline, "pixel-9", 64, rows, 2)
    assert 1 < fit < 64
    assert takes(fit) <= budget < takes(2 * fit)
    assert fitting(pipeline, "none", 64, rows, 2) == 64
    with pytest.raises(ProfileError):
        fitting(pipeline, "pixel-9", 64, 1 << 24, 2)

    said = []
    monkeypatch.setattr("mtp_mlx.batch.answers.fitting", lambda *_: 2)
    many = dict(run(enumerate(TEXTS), pipeline=pipeline, request=REQUEST, batch=8, say=said.append))
    assert len(many) == len(TEXTS)
    assert len(said) == 2  # of two capacities
    assert all("2 at once, not 8" in line for line in said)


@pytest.mark.parametrize("size", [2, 6])
def test_a_batch_takes_no_more_memory_than_its_ledger_says(pipeline, size):
    texts = ["one two three four five six seven " * 30] * (3 * size)
    request = replace(REQUEST, width=4, draft_length=3)
    list(run(enumerate(texts[:1]), pipeline=pipeline, request=request, batch=size))  # what every batch shares
    gc.collect()  # what earlier tests left is not this batch's
    mx.clear_cache()
    weights = sum(size for name, size in pipeline.ledger(rows=1).entries.items() if name != "KV cache")
    before = mx.get_active_memory()
    assert len(list(run(enumerate(texts), pipeline=pipeline, request=request, batch=size))) == len(texts)
    told = ledger(pipeline, batch=size, capacity=512, width=4).total - weights
    assert told / 3 < mx.get_peak_memory() - before < told


def test_a_width_is_chosen_where_none_is_given(pipeline, monkeypatch):
    """In Python, too; a task's name is a request for as many drafts as pay."""
    asked = []

    def measure(pipeline, request, *, batch):
        asked.append(batch)
        return Pace({1: 1.0, 3: 1.0}, 0.0, (0.9, 0.9))

    monkeypatch.setattr("mtp_mlx.batch.answers.measure", measure)
    request = replace(REQUEST, draft_length="auto")
    results = dict(batch.run([("a", "hello wrld")], request=request, pipeline=pipeline, batch=2))
    assert (asked, results["a"]["tokens"]) == ([2], 6)


def test_texts_are_read_as_they_are_needed(pipeline):
    read = []
    endless = ((i, "hello") for i in count() if not read.append(i))
    answers = run(endless, pipeline=pipeline, request=REQUEST)
    assert [next(answers)[0] for _ in range(3)] == [0, 1, 2]
    assert len(read) == 3
    answers = run(endless, pipeline=pipeline, request=REQUEST, batch=2)
    assert [next(answers)[0] for _ in range(3)] == [3, 4, 5]
    assert len(read) <= 3 + 64 + 5
