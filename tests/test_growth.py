"""The curve over the context: what grows, and what is bounded."""

from __future__ import annotations

import json

import mlx.core as mx
import pytest

from mtp_mlx import growth
from mtp_mlx.cli import main
from mtp_mlx.head import HeadConfig, MTPHead
from mtp_mlx.pipeline import Pipeline

CONTEXTS = (64, 512, 1024)


@pytest.fixture(scope="module")
def points(tiny):
    head = MTPHead(HeadConfig.for_backbone(tiny, kv_layers=(1, 3)), mx.arange(512))
    head.copy_from(tiny)
    return list(growth.growth(Pipeline(tiny, head), task="proofread", contexts=CONTEXTS))


def test_every_context_has_a_point_and_the_cache_grows_with_it(points, tiny):
    assert [point.context for point in points] == list(CONTEXTS)
    for point in points:
        assert point.kv_bytes == tiny.kv_nbytes(point.context)
        seconds = (point.prefill_seconds, point.plain_seconds, point.pass_seconds, point.step_seconds)
        assert all(0 < value < 60 for value in seconds)
        assert 1 / point.token_seconds >= 1 / point.pass_seconds  # rates: a reciprocal of a reciprocal rounds


def test_the_prefills_memory_is_bounded_by_its_chunks(points):
    """Twice the context in chunks of one size: scores double; of a whole prompt at once they would be fourfold."""
    _, half, whole = points
    assert whole.prefill_bytes < 3 * half.prefill_bytes


def test_a_table_and_a_picture_show_every_point(points, tmp_path):
    lines = growth.table(points).splitlines()
    assert len(lines) == 2 + len(CONTEXTS)
    assert len({line.count("|") for line in lines}) == 1
    growth.plot(points, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_draws_the_curve(tiny, tiny_drafters, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(growth, "CONTEXTS", (64, 128))
    plot = tmp_path / "growth.png"
    weights = ["--backbone", str(tiny.path), "--head", str(tiny_drafters[0])]
    assert main(["bench", "--growth", "--task", "proofread", *weights, "--plot", str(plot), "--json"]) == 0
    points = json.loads(capsys.readouterr().out)["growth"]
    assert [point["context"] for point in points] == [64, 128]
    assert plot.is_file()
    assert main(["bench", "--growth", "--arms", "mtp"]) == 1
    assert "--growth" in capsys.readouterr().err
