"""The iterator: each answer is the one that the text gets alone, and a text that cannot be worked on is an error."""

from itertools import count

import pytest

from mtp_mlx.batch.answers import run
from mtp_mlx.pipeline import Pipeline
from mtp_mlx.request import Request

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
    texts = ["", "half \ud800", "word " * 200_000, "fine"]
    results = [result for _, result in run(enumerate(texts), pipeline=pipeline, request=REQUEST)]
    assert [result.keys() for result in results[:3]] == [{"error"}] * 3
    assert all("\n" not in result["error"] for result in results[:3])
    assert results[3]["seconds"] > 0


def test_texts_are_read_as_they_are_needed(pipeline):
    read = []
    endless = ((i, "hello") for i in count() if not read.append(i))
    answers = run(endless, pipeline=pipeline, request=REQUEST)
    assert [next(answers)[0] for _ in range(3)] == [0, 1, 2]
    assert len(read) == 3
