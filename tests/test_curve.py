"""Rows a minute over the texts at once: every number has a point, and drafts change no text."""

import json

import pytest

from mtp_mlx.batch import curve, pace
from mtp_mlx.cli import main
from mtp_mlx.pipeline import Pipeline
from mtp_mlx.request import Request

TEXTS = ["hello wrld", "a b c a b c", "x y x y"]


@pytest.fixture
def pipeline(tiny, monkeypatch):
    made = Pipeline(tiny)
    monkeypatch.setattr("mtp_mlx.pipeline.load", lambda *_, **__: made)
    return made


def test_every_number_has_a_point(pipeline, tmp_path):
    request = Request(task="proofread", text="", drafter="lookup", draft_length=2, width=3, max_tokens=5)
    points = list(curve.curve(pipeline, TEXTS, request=request, batches=(1, 2)))
    assert [(point.batch, point.width, point.rows) for point in points] == [(1, 3, 6), (2, 3, 9)]
    for point in points:
        assert point.plain > 0
        assert point.drafted > 0
        assert point.additional <= point.tokens_per_pass <= 1 + point.additional
        assert point.same == point.as_one == point.rows  # this model has no near-ties here
    first, second = curve.to_json(points)
    assert first["ratio"] == first["ratio_same_batch"]
    assert second["ratio"] == pytest.approx(points[1].drafted / points[0].plain)
    lines = curve.table(points).splitlines()
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1
    curve.plot(points, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_draws_the_curve(pipeline, capsys, monkeypatch, tmp_path):
    """And chooses the width where nobody says it."""
    monkeypatch.setattr(curve, "measure", lambda *_, **__: pace.Pace({1: 1.0, 2: 1.0}, 0.0, (0.5,)))
    words = ["--batch", "1,2", "--task", "summarize", "--limit", "1", "--max-tokens", "3", "--arms", "lookup"]
    assert main(["bench", *words, "--plot", str(tmp_path / "curve.png"), "--json"]) == 0
    points = json.loads(capsys.readouterr().out)["batch"]
    assert [(point["batch"], point["width"]) for point in points] == [(1, 2), (2, 2)]
    assert (tmp_path / "curve.png").is_file()
    assert main(["bench", "--batch", "2", "--arms", "lookup,mtp"]) == 1
    assert "--batch" in capsys.readouterr().err
