"""The KV cache: rows land where they belong, rejected ones leave no trace, and a view is no copy."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import chain

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.base import create_causal_mask

from mtp_mlx.backbone import Backbone
from mtp_mlx.kv import CAPACITY_STEP, KV

HEADS, DIM = 2, 4


def rows_of(count: int, seed: int) -> mx.array:
    """(1, heads, count, dim), different for each seed."""
    return mx.array(np.random.default_rng(seed).standard_normal((1, HEADS, count, DIM), dtype=np.float32))


def write(kv: KV, count: int, seed: int) -> None:
    for number, layer in enumerate(kv.layers):
        layer.update_and_fetch(rows_of(count, seed + number), -rows_of(count, seed + number))


@given(st.integers(1, 5000))
def test_capacity_is_the_next_whole_step(rows: int):
    capacity = KV(1, rows).capacity
    assert capacity % CAPACITY_STEP == 0
    assert rows <= capacity < rows + CAPACITY_STEP


def test_a_pass_gets_whole_buffers_with_its_rows_behind_the_committed_ones():
    kv = KV(1, 100)
    write(kv, 3, seed=1)
    kv.commit(3)
    keys, values = kv.layers[0].update_and_fetch(rows_of(2, 2), rows_of(2, 3))
    assert keys.shape == values.shape == (1, HEADS, 128, DIM)
    assert mx.array_equal(keys[:, :, :3], rows_of(3, 1))
    assert mx.array_equal(keys[:, :, 3:5], rows_of(2, 2))
    assert mx.array_equal(values[:, :, 3:5], rows_of(2, 3))
    assert not keys[:, :, 5:].any().item()
    assert kv.layers[0].offset == kv.length == 3  # nothing is committed by writing


def test_reading_a_prompt_sees_no_more_than_the_rows_up_to_its_end():
    kv = KV(1, 1000)
    with kv.reading(70):
        keys, values = kv.layers[0].update_and_fetch(rows_of(70, 1), rows_of(70, 2))
        assert keys.shape == values.shape == (1, HEADS, 128, DIM)
        assert kv.layers[0].make_mask(70).shape == (70, 128)
    assert kv.view(0)[0].shape[2] == kv.capacity
    assert kv.layers[0].make_mask(2).shape == (2, kv.capacity)


def test_a_prompt_is_read_into_the_same_bits_whatever_the_capacity(tiny: Backbone):
    ids = np.random.default_rng(0).integers(5, 50, 300).tolist()
    small, large = tiny.make_kv(310), tiny.make_kv(900)
    states = [tiny.prefill(ids, kv, last=3) for kv in (small, large)]
    assert mx.array_equal(*states)
    for layer in range(len(small.layers)):
        for mine, other in zip(small.view(layer), large.view(layer), strict=True):
            assert mx.array_equal(mine[:, :, :300], other[:, :, :300])


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), max_size=12))
def test_committed_rows_are_the_ones_that_were_written_there(passes: list[tuple[int, int]]):
    kv = KV(2, 12 * 8)
    kept: list[list[np.ndarray]] = [[], []]
    for seed, (count, accepted) in enumerate(passes):
        accepted = min(accepted, count)
        write(kv, count, seed=10 * seed)
        kv.commit(accepted)
        for number in range(2):
            kept[number].append(np.array(rows_of(count, 10 * seed + number))[:, :, :accepted])
    assert kv.length == sum(rows.shape[2] for rows in kept[0])
    for number in range(2 if passes else 0):
        keys, values = kv.view(number)
        expected = np.concatenate(kept[number], axis=2)
        np.testing.assert_array_equal(np.array(keys)[:, :, : kv.length], expected)
        np.testing.assert_array_equal(np.array(values)[:, :, : kv.length], -expected)


def test_overflow_is_refused_and_changes_nothing():
    kv = KV(1, 64)
    write(kv, 60, seed=1)
    kv.commit(60)
    write(kv, 4, seed=2)  # to the last row
    before = [np.array(a) for a in kv.view(0)]
    with pytest.raises(ValueError, match="64"):
        write(kv, 5, seed=3)
    assert kv.length == 60
    for array, old in zip(kv.view(0), before, strict=True):
        np.testing.assert_array_equal(np.array(array), old)


@given(st.integers(0, 60), st.integers(1, 60), st.none() | st.integers(1, 80))
def test_the_mask_is_mlx_lm_s_over_the_whole_capacity(offset: int, rows: int, window: int | None):
    kv = KV(1, 120)
    kv.commit(offset)
    mask = np.array(kv.layers[0].make_mask(rows, return_array=True, window_size=window))
    expected = np.zeros((rows, kv.capacity), bool)
    expected[:, : offset + rows] = np.array(create_causal_mask(rows, offset, window))
    np.testing.assert_array_equal(mask, expected)
    for row in range(rows):  # and in words: itself, and the last `window` keys before and with it
        seen = np.flatnonzero(mask[row])
        first = 0 if window is None else max(0, offset + row - window + 1)
        assert (seen[0], seen[-1], seen.size) == (first, offset + row, offset + row - first + 1)


def test_an_empty_cache_has_no_view():
    kv = KV(2, 10)
    assert kv.nbytes == 0
    with pytest.raises(ValueError, match="prefill"):
        kv.view(1)


def test_a_view_is_the_backbone_s_buffer():
    kv = KV(2, 10)
    write(kv, 3, seed=1)
    for number, layer in enumerate(kv.layers):
        keys, values = kv.view(number)
        assert keys is layer.keys
        assert values is layer.values
    assert kv.nbytes == 2 * 2 * HEADS * 64 * DIM * 4


def test_reading_and_writing_take_no_memory_that_grows_with_the_context():
    def memory(kv: KV) -> tuple[int, int]:
        """Bytes above what was in use before, after and at the peak of some passes with a reader."""
        write(kv, 8, seed=0)
        mx.eval(kv.view(0))
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        for seed in range(20):
            write(kv, 8, seed)
            mx.eval(kv.view(0))
            kv.commit(3)
            committed = [array[:, :, : kv.length] for array in kv.view(0)]
            mx.eval(committed)
            del committed
        return mx.get_active_memory() - before, mx.get_peak_memory() - before

    kv = KV(1, 64_000)
    after, peak = memory(kv)
    assert kv.nbytes > 4_000_000
    assert after < 10_000
    assert peak < 100_000


# The rest with a model: whatever was rejected before, a committed position has the same bits.

PROMPT = [1, 969, 198, 2683, 359, 253, 536, 3646]
LENGTH = 24


@cache
def plain(model: Backbone, width: int) -> tuple[list[int], np.ndarray, list[np.ndarray]]:
    """The greedy text, its logits and its KV rows, one token a pass."""
    kv = start(model, width)
    text, logits = [PROMPT[-1]], []
    for _ in range(LENGTH):
        logits.append(np.array(model.forward(text[-1:], kv, width=width).logits[0]))
        kv.commit(1)
        text.append(int(logits[-1].argmax()))
    return text, np.stack(logits), committed(kv)


def start(model: Backbone, width: int) -> KV:
    kv = model.make_kv(len(PROMPT) + LENGTH + width)
    model.prefill(PROMPT[:-1], kv)
    return kv


def committed(kv: KV) -> list[np.ndarray]:
    """The committed rows of every buffer."""
    buffers = chain.from_iterable(kv.view(number) for number in range(len(kv.layers)))
    return [np.array(buffer[:, :, : kv.length]) for buffer in buffers]


def replay(model: Backbone, width: int, pattern: Iterator[tuple[int, int]], *, poison: float | None = None):
    """The same text in passes of (right tokens, wrong tokens behind them); its logits and its KV rows."""
    text = plain(model, width)[0]
    kv, at, logits = start(model, width), 0, []
    while at < LENGTH:
        right, wrong = next(pattern, (1, 0))
        right = min(right, width, LENGTH - at)
        rows = [*text[at : at + right], *[(token + 1) % model.args.vocab_size for token in text[:wrong]]][:width]
        logits.append(np.array(model.forward(rows, kv, width=width).logits[:right]))
        kv.commit(right)
        at += right
        if poison is not None:
            for layer in kv.layers:
                layer.keys[:, :, kv.length :] = poison
                layer.values[:, :, kv.length :] = poison
    return np.concatenate(logits), committed(kv)


@settings(max_examples=15)
@given(
    width=st.sampled_from([2, 5, 8]),
    pattern=st.lists(st.tuples(st.integers(1, 8), st.integers(0, 7)), max_size=LENGTH),
)
def test_no_pattern_of_acceptance_changes_a_bit(tiny: Backbone, width: int, pattern: list[tuple[int, int]]):
    _, logits, rows = plain(tiny, width)
    replayed, kept = replay(tiny, width, iter(pattern))
    np.testing.assert_array_equal(replayed, logits)
    for mine, expected in zip(kept, rows, strict=True):
        np.testing.assert_array_equal(mine, expected)


@pytest.mark.parametrize("poison", [1e4, -1e4])
def test_rows_that_are_not_committed_are_not_seen(tiny: Backbone, poison: float):
    _, logits, rows = plain(tiny, 8)
    replayed, kept = replay(tiny, 8, iter([(3, 5), (1, 7), (8, 0), (2, 2)]), poison=poison)
    np.testing.assert_array_equal(replayed, logits)
    for mine, expected in zip(kept, rows, strict=True):
        np.testing.assert_array_equal(mine, expected)


def test_the_text_depends_on_the_cache(tiny: Backbone):
    """The checks above could fail: one changed key row in the context changes what comes next."""
    text, logits, _ = plain(tiny, 8)
    kv = start(tiny, 8)
    kv.layers[0].keys[:, :, 2] = 0
    assert not np.array_equal(np.array(tiny.forward(text[:1], kv, width=8).logits[0]), logits[0])


def test_one_row_too_many_for_a_request_is_refused(tiny: Backbone):
    kv = tiny.make_kv(64)
    tiny.prefill([7] * 60, kv)
    tiny.forward([1, 2], kv, width=4)
    with pytest.raises(ValueError, match="64"):
        tiny.forward([1], kv, width=5)
