"""Exponentials as powers: the same figures but for the last bits, within the block only, and only where it pays."""

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models import llama
from mlx_lm.models.activations import swiglu
from mlx_lm.models.base import scaled_dot_product_attention

from mtp_mlx.cpu import powers


@pytest.mark.parametrize("heads", [(4, 4), (6, 2)])
@pytest.mark.parametrize("masked", ["no mask", "one mask", "a mask for each text"])
def test_attention_is_mlx_lms(heads, masked):
    mx.random.seed(3)
    queries, keys, values = (
        3 * mx.random.normal((2, n, m, 8)) for n, m in ((heads[0], 5), (heads[1], 9), (heads[1], 9))
    )
    mask = mx.arange(9) <= mx.array([[0, 3, 8, 5, 2], [1, 8, 8, 0, 7]])[:, None, :, None]
    mask = {"no mask": None, "one mask": mask[0, 0], "a mask for each text": mask}[masked]
    arguments = {"cache": None, "scale": 0.3, "mask": mask}
    expected = scaled_dot_product_attention(queries, keys, values, **arguments)
    assert mx.allclose(powers.attention(queries, keys, values, **arguments), expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["added", "for each head", "causal"])
def test_other_masks_are_mlx_lms_own(kind):
    queries, keys, values = (mx.random.normal((2, n, 5, 8)) for n in (4, 2, 2))
    seen = mx.arange(5) <= mx.arange(5)[:, None]
    mask = {
        "added": mx.where(seen, 0.0, -1e9),
        "for each head": mx.broadcast_to(seen, (2, 4, 5, 5)),
        "causal": "causal",
    }
    arguments = {"cache": None, "scale": 0.3, "mask": mask[kind]}
    expected = powers.attention(queries, keys, values, cache=None, scale=0.3, mask=seen)
    assert mx.allclose(powers.attention(queries, keys, values, **arguments), expected, atol=1e-6)


def test_what_is_masked_changes_no_bit():
    """Left-over keys and values may hold anything finite."""
    queries, keys, values = (mx.random.normal((1, 2, n, 8)) for n in (3, 6, 6))
    mask = mx.arange(6) < 4
    arguments = {"cache": None, "scale": 1.0, "mask": mx.broadcast_to(mask, (1, 1, 3, 6))}
    expected = powers.attention(queries, keys, values, **arguments)
    for array in (keys, values):
        array[:, :, 4:] = 1e15
    assert mx.array_equal(powers.attention(queries, keys, values, **arguments), expected)


def test_swiglu_is_mlx_lms():
    gate, x = mx.linspace(-60, 60, 999), mx.random.normal((999,))
    assert mx.allclose(powers.swiglu(gate, x), nn.silu(gate) * x, rtol=1e-5, atol=1e-7)


def test_extreme_gates_are_finite():
    gate = mx.array([-1e4, -100.0, 0.0, 100.0, 1e4])
    assert powers.swiglu(gate, mx.ones(5)).tolist() == pytest.approx([0, 0, 0, 100, 1e4])


@pytest.mark.parametrize("slow", [True, False])
def test_either_way_is_the_same_but_for_the_last_bits(monkeypatch, slow):
    monkeypatch.setattr(powers, "on_linux_cpu", lambda: slow)
    gate, x = mx.linspace(-60, 60, 99), mx.random.normal((99,))
    assert mx.allclose(powers.gated(gate, x), nn.silu(gate) * x, rtol=1e-5, atol=1e-7)
    assert mx.allclose(powers.exp(gate), mx.exp(gate), rtol=1e-4)
    assert float(powers.exp(mx.array(-float("inf")))) == 0


def test_only_within_the_block_and_only_where_it_is_faster(tiny, monkeypatch):
    ours = (powers.attention, powers.swiglu)
    theirs = (scaled_dot_product_attention, swiglu)
    for slow in (True, False):
        monkeypatch.setattr(powers, "on_linux_cpu", lambda slow=slow: slow)
        with pytest.raises(KeyError), powers.instead(tiny.model):
            assert (llama.scaled_dot_product_attention, llama.swiglu) == (ours if slow else theirs)
            raise KeyError
        assert (llama.scaled_dot_product_attention, llama.swiglu) == theirs
