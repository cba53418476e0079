"""The load-time probe: passes on a sound backbone, and says so plainly where rows round differently."""

import mlx.core as mx
import pytest

from mtp_mlx.backbone import Backbone, Pass
from mtp_mlx.probe import probe, probe_batch


class Uneven(Backbone):
    """Rounds by row, as kernels chosen by shape do: row i of a pass is off by i ulps."""

    def __init__(self, backbone):
        super().__init__(backbone.model, backbone.tokenizer, backbone.path)

    def forward(self, ids, kv, *, width):
        if self.row_by_row and len(ids) > 1:
            return super().forward(ids, kv, width=width)
        result = super().forward(ids, kv, width=width)
        rows = mx.arange(len(ids))[:, None]
        return Pass(result.logits * (1 + rows * 2**-22), result.hidden)


@pytest.mark.parametrize("width", [2, 5, 8])
def test_sound(tiny, width):
    result = probe(tiny, width=width)
    assert result.exact
    assert result.compared >= 6


def test_shipped_model(backbone):
    assert probe(backbone, width=8).exact


def test_uneven_rows_are_found_and_the_message_names_the_cure(tiny):
    result = probe(Uneven(tiny), width=8)
    assert not result.exact
    assert 0 < result.different < result.compared
    assert "--row-by-row" in str(result)


def test_row_by_row_cures_it(tiny):
    slow = Uneven(tiny)
    slow.row_by_row = True
    assert probe(slow, width=8).exact


class UnevenTogether(Backbone):
    """Rounds by row or by slot, as above."""

    def __init__(self, backbone, *, axis):
        super().__init__(backbone.model, backbone.tokenizer, backbone.path)
        self.axis = axis

    def logits(self, hidden):
        logits = super().logits(hidden)
        shape = [1, 1, 1]
        shape[self.axis] = -1
        return logits * (1 + mx.arange(logits.shape[self.axis]).reshape(shape) * 2**-22)


@pytest.mark.parametrize(("texts", "width"), [(2, 1), (3, 4), (5, 2)])
def test_several_texts_at_once(tiny, texts, width):
    result = probe_batch(tiny, texts=texts, width=width)
    assert result.exact
    assert result.compared >= texts + width
    assert f"{texts} texts at once" in str(result)


@pytest.mark.parametrize("axis", [0, 1])
def test_uneven_rows_and_slots_are_found(tiny, axis):
    result = probe_batch(UnevenTogether(tiny, axis=axis), texts=3, width=4)
    assert 0 < result.different < result.compared
    assert "--batch 1" in str(result)
