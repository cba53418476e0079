"""What people look at agrees with what was decoded: ranks, probabilities, the first of equals, and attention."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtp_mlx.backbone import Backbone
from mtp_mlx.head import HeadConfig, MTPHead
from mtp_mlx.inspection import SMALLEST, judge, likeliest, looked_at
from mtp_mlx.pipeline import Pipeline
from mtp_mlx.request import Request


@st.composite
def passes(draw: st.DrawFn) -> tuple[np.ndarray, list[int]]:
    """Logits of a pass, small whole numbers so that equal ones are common, and what was drafted."""
    n, drafted = draw(st.integers(3, 9)), draw(st.lists(st.integers(0, 2), max_size=3))
    row = st.lists(st.integers(-3, 3), min_size=n, max_size=n)
    return np.array([draw(row) for _ in range(len(drafted) + 1)], float), drafted


@given(passes())
def test_rows_say_what_argmax_and_softmax_say(one_pass: tuple[np.ndarray, list[int]]):
    logits, ids = one_pass
    n, drafted = logits.shape[1], len(ids)
    chances = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    rows = judge(mx.array(logits, mx.float32), ids)
    assert len(rows) == drafted + 1
    for i, row in enumerate(rows):
        order = sorted(range(n), key=lambda id: (-logits[i, id], id))
        assert [id for id, _ in row.top] == order[:3]
        assert row.top[0][0] == int(mx.argmax(mx.array(logits[i])))
        assert [p for _, p in row.top] == pytest.approx(chances[i, order[:3]], rel=1e-5)
        assert row.margin == logits[i, order[0]] - logits[i, order[1]]
        if i < drafted:
            assert row.rank == order.index(ids[i]) + 1
            assert row.probability == pytest.approx(chances[i, ids[i]], rel=1e-5)
    assert (rows[-1].rank, rows[-1].probability) == (None, None)


def test_the_likeliest_are_named_by_their_ids():
    top = likeliest(mx.array([0.0, 2.0, 1.0, -1.0]), ids=mx.array([40, 30, 20, 10]))
    assert [id for id, _ in top] == [30, 20, 40]
    assert top[0][1] == pytest.approx(0.6439, abs=1e-4)


def test_only_shares_that_can_be_seen_are_kept():
    shares = mx.array([0.5, 0.001, 0.49, 0.009])
    assert [(i, round(share, 3)) for i, share in looked_at(shares)] == [(0, 0.5), (2, 0.49), (3, 0.009)]
    assert SMALLEST > 0.001


@pytest.fixture(scope="module")
def pipeline(tiny: Backbone) -> Pipeline:
    mx.random.seed(1)
    head = MTPHead(HeadConfig.for_backbone(tiny, kv_layers=(1, 3)), mx.arange(4000))
    head.copy_from(tiny)
    return Pipeline(tiny, head)


@pytest.mark.parametrize("drafter", ["mtp", "auto", "lookup", "plain"])
def test_looking_changes_nothing_and_agrees_with_the_rounds(pipeline: Pipeline, drafter: str):
    text = "hello wrld hello wrld"
    bare, seen = (
        pipeline.start(Request("proofread", text, drafter=drafter, max_tokens=24, inspect=inspect))
        for inspect in (False, True)
    )
    for run in (bare, seen):
        for _ in run:
            pass
    assert seen.trace.token_ids == bare.trace.token_ids
    assert bare.trace.to_json()["prompt"] == [] and all(r["rows"] == [] for r in bare.trace.rounds)
    prompt = seen.trace.to_json()["prompt"]
    assert len(prompt) == seen.trace.prompt_tokens
    assert "".join(token["text"] for token in prompt).count(text) == 1
    committed = len(prompt)
    for before, round in zip(bare.trace.rounds, seen.trace.rounds, strict=True):
        assert [token["id"] for token in round["drafted"]] == [token["id"] for token in before["drafted"]]
        assert len(round["rows"]) == len(round["drafted"]) + 1
        for i, (token, row) in enumerate(zip(round["drafted"], round["rows"], strict=False)):
            assert (row["rank"] == 1) == (row["top"][0]["id"] == token["id"])
            assert i > round["accepted"] or (row["rank"] == 1) == (i < round["accepted"])
            if drafter == "mtp":  # what it wrote is what it thought likeliest
                assert token["top"][0]["id"] == token["id"]
                assert token["top"][0]["probability"] == pytest.approx(token["probability"], rel=1e-3)
            if drafter in ("mtp", "auto"):
                assert len(token["attention"]) == 2
                for layer in token["attention"]:
                    assert all(0 <= position < committed - 1 for position, _ in layer)
                    assert sum(share for _, share in layer) == pytest.approx(1, abs=0.5)
            else:
                assert token["top"] == token["attention"] == []
        own = round["rows"][round["accepted"]]
        assert round["token"] is None or own["top"][0]["id"] == round["token"]["id"]
        assert own["margin"] == pytest.approx(round["margin"], rel=1e-3, abs=1e-5)
        committed += round["accepted"] + (round["token"] is not None)
