"""What takes the place of MLX's layers on a Linux CPU: the same figures but for the last bits, and the same weights."""

import threading

import mlx.core as mx
import mlx.nn as nn
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx.utils import tree_flatten
from mlx_lm.models import llama

from mtp_mlx import blas, cpu
from mtp_mlx.cpu import products
from mtp_mlx.cpu.products import Linear, piece, product
from mtp_mlx.cpu.rotation import Rotation, one_pass


@pytest.fixture(params=[True, False], ids=["small kernels", "none"])
def kernels(request, monkeypatch):
    monkeypatch.setattr(blas, "small_kernels", lambda: request.param)


@pytest.mark.parametrize("rows", [(), (1,), (1, 1), (2,), (1, 5), (2, 3), (1, 16), (17,)])
@pytest.mark.parametrize("outputs", [1, 37, 96, 1536, 6000])
def test_a_product_is_the_product(kernels, rows, outputs):
    x, weight = mx.random.normal((*rows, 64)), mx.random.normal((outputs, 64))
    y = product(x, weight)
    assert y.shape == (*rows, outputs)
    assert mx.allclose(y, x @ weight.T, rtol=1e-5, atol=1e-4)


@given(outputs=st.integers(1, 50_000), inputs=st.integers(1, 9000))
def test_a_matrix_is_cut_into_even_pieces_or_not_at_all(outputs, inputs):
    size = piece(outputs, inputs)
    assert size == 0 or (outputs % size == 0 and size >= products.LEAST and size * inputs <= products.PIECE_NUMBERS)


def test_a_bias_is_added(kernels):
    layer = nn.Linear(8, 40)
    layer.bias = mx.random.normal((40,))
    x = mx.random.normal((2, 3, 8))
    assert mx.allclose(Linear.of(layer)(x), layer(x), atol=1e-5)


@pytest.mark.parametrize("traditional", [True, False])
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_rows_are_rotated_as_mlx_does(traditional, scale):
    rope = nn.RoPE(16, traditional=traditional, base=500.0, scale=scale)
    ours = Rotation(rope)
    for offset, rows in [(0, 1), (0, 7), (3, 7), (3, 2), (700, 2), (3, 2)]:
        x = mx.random.normal((2, 3, rows, 16))
        assert mx.allclose(ours(x, offset=offset), rope(x, offset=offset), atol=2e-5)


def test_every_text_of_a_batch_has_its_own_position():
    rope = nn.RoPE(16)
    ours = Rotation(rope)
    x, offsets = mx.random.normal((2, 3, 4, 16)), mx.array([3, 9])
    for _ in range(2):  # passes
        with one_pass():
            for _ in range(2):  # layers
                assert mx.allclose(ours(x, offset=offsets), rope(x, offset=offsets), atol=2e-5)
        offsets += 2  # in place, as mlx-lm's caches do between layers too
        for _ in range(2):
            assert mx.array_equal(ours(x, offset=offsets), rope(x, offset=offsets))
            offsets += 1


def test_arrays_of_offsets_and_types_are_told_apart():
    rope = nn.RoPE(16)
    ours = Rotation(rope)
    x = mx.random.normal((2, 3, 4, 16))
    with one_pass():
        for offsets in (mx.array([3, 9]), mx.array([40, 2])):
            assert mx.allclose(ours(x, offset=offsets), rope(x, offset=offsets), atol=2e-5)
    for dtype in (mx.float16, mx.float32):
        assert ours(x.astype(dtype), offset=7).dtype == dtype
    assert mx.allclose(ours(x, offset=7), rope(x, offset=7), atol=2e-5)


@pytest.mark.parametrize("shape", [(2, 5, 16), (2, 2, 2, 5, 16)])
def test_other_shapes_are_rotated_as_mlx_does(shape):
    x = mx.random.normal(shape)
    assert mx.array_equal(Rotation(nn.RoPE(16))(x, offset=3), nn.RoPE(16)(x, offset=3))


def test_two_threads_leave_mlx_lm_as_it_was(tiny):
    """One of them is in the middle of a pass when the other one begins and ends its own."""
    before = llama.swiglu, llama.scaled_dot_product_attention
    inside, done = threading.Event(), threading.Event()

    def slow():
        with cpu.one_pass(tiny.model):
            inside.set()
            done.wait(0.2)

    thread = threading.Thread(target=slow)
    thread.start()
    inside.wait()
    with cpu.one_pass(tiny.model):
        pass
    done.set()
    thread.join()
    assert (llama.swiglu, llama.scaled_dot_product_attention) == before
    x, offsets = mx.random.normal((2, 3, 4, 16)), mx.array([3, 9])
    rope = nn.RoPE(16)
    assert mx.array_equal(Rotation(rope)(x, offset=offsets), rope(x, offset=offsets))


def test_what_is_not_to_be_rotated_stays():
    rope = nn.RoPE(8)
    x = mx.random.normal((1, 2, 3, 16))  # the first half of each head only
    assert mx.array_equal(Rotation(rope)(x, offset=5), rope(x, offset=5))


def test_a_row_is_rotated_alike_in_any_pass():
    ours = Rotation(nn.RoPE(64, base=100_000))
    x = mx.random.normal((1, 9, 8, 64))
    together = ours(x, offset=40)
    for i in range(8):
        rows = mx.concatenate([x[:, :, i:], x[:, :, :i]], axis=2)  # row i first, from its own position on
        assert mx.array_equal(ours(rows, offset=40 + i)[:, :, 0], together[:, :, i])


@pytest.mark.parametrize("slow", [True, False])
def test_a_model_is_adapted_only_where_it_is_faster_and_back(tiny, monkeypatch, slow):
    monkeypatch.setattr(cpu, "on_linux_cpu", lambda: slow)
    model = llama.Model(tiny.args)
    before = dict(tree_flatten(model.parameters()))
    logits = model(mx.array([[1, 2, 3]]))
    cpu.adapt(model)
    attention = [layer.self_attn for layer in model.layers]
    assert {type(a.q_proj) for a in attention} == {Linear if slow else nn.Linear}
    assert len({id(a.rope) for a in attention}) == (1 if slow else len(attention))
    assert mx.allclose(model(mx.array([[1, 2, 3]])), logits, atol=1e-5)
    after = dict(tree_flatten(model.parameters()))
    assert after.keys() == before.keys() and all(after[name] is before[name] for name in before)

    again = cpu.original(model)
    assert {type(layer.self_attn.q_proj) for layer in again.layers} == {nn.Linear}
    assert mx.array_equal(again(mx.array([[1, 2, 3]])), logits)
