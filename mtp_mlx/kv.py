"""A KV cache of fixed capacity: rows are written ahead of the committed length, so a roll back is nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import mlx.core as mx

CAPACITY_STEP = 64


def stepped(rows: int) -> int:
    """``rows``, rounded up to a multiple of ``CAPACITY_STEP``."""
    return -(-rows // CAPACITY_STEP) * CAPACITY_STEP


def doubled(rows: int) -> int:
    """``rows``, rounded up to one of 128, 192, 256, 384, 512, ...: few capacities, for texts that have to share one."""
    rows = max(2 * CAPACITY_STEP, rows)
    power = 1 << (rows - 1).bit_length()
    return 3 * power // 4 if rows <= 3 * power // 4 and power > 2 * CAPACITY_STEP else power


class LayerKV:
    """One layer's keys and values, both (1, kv_heads, capacity, head_dim), as mlx-lm's models expect a cache."""

    def __init__(self, owner: KV):
        self._owner = owner
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    @property
    def offset(self) -> int:
        """The position of the next row that a pass writes."""
        return self._owner.length

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write (1, kv_heads, rows, head_dim) behind the committed rows; return the whole buffers.

        Only the committed length says which rows count: the caller moves it with ``KV.commit``. While a prompt is
        read, only as much of the buffers is returned as can be seen; see ``KV.reading``.
        """
        self._owner.check_room(keys.shape[2])
        start, stop = self.offset, self.offset + keys.shape[2]
        if self.keys is None or self.values is None:
            self.keys, self.values = self._owner.buffer(keys), self._owner.buffer(values)
        self.keys[:, :, start:stop] = keys
        self.values[:, :, start:stop] = values
        if (seen := self._owner.seen) < self._owner.capacity:
            return self.keys[:, :, :seen], self.values[:, :, :seen]
        return self.keys, self.values

    def make_mask(self, rows: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        """(rows, keys) bool: row i sees every committed key and itself, within the window if there is one."""
        return seen_keys(self.offset, rows=rows, keys=self._owner.seen, window_size=window_size)


class TracedKV:
    """One layer's buffers in a compiled pass: the position is an array, so that one trace serves every position.

    Args:
        offset: () int32, the position of the next row.
        keys, values: as ``LayerKV``'s; a pass leaves new arrays in their place, in the same memory, unless a draft that
            is on its way still reads them.
    """

    def __init__(self, offset: mx.array, keys: mx.array, values: mx.array):
        self.offset = offset
        self.keys = keys
        self.values = values

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """As ``LayerKV``'s, but whoever calls the compiled pass has to ``check_room``: MLX writes past the end."""
        self.keys = mx.slice_update(self.keys, keys, self.offset, axes=(2,))
        self.values = mx.slice_update(self.values, values, self.offset, axes=(2,))
        return self.keys, self.values

    def make_mask(self, rows: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        """As ``LayerKV``'s."""
        return seen_keys(self.offset, rows=rows, keys=self.keys.shape[2], window_size=window_size)


def seen_keys(offset: int | mx.array, *, rows: int, keys: int, window_size: int | None) -> mx.array:
    """(rows, keys) bool: row i, at position offset + i, sees every key up to its own, within the window."""
    query = (offset + mx.arange(rows))[:, None]
    key = mx.arange(keys)[None]
    mask = key <= query
    return mask if window_size is None else mask & (query < key + window_size)


class KV:
    """The KV cache of one request.

    Args:
        layers: how many layers the backbone has.
        rows: the most rows that are ever written: prompt + token budget + width. Rounded up to the capacity.
        few: of few capacities; compiled passes are kept for each one that came up.
    """

    def __init__(self, layers: int, rows: int, *, few: bool = False):
        self.capacity = self.seen = doubled(rows) if few else stepped(rows)  # seen: the keys that a pass attends over
        self.length = 0
        self.layers = [LayerKV(self) for _ in range(layers)]

    def buffer(self, like: mx.array) -> mx.array:
        batch, heads, _, dim = like.shape
        return mx.zeros((batch, heads, self.capacity, dim), like.dtype)

    @contextmanager
    def reading(self, rows: int) -> Iterator[None]:
        """Within the block, a pass over the next ``rows`` of a prompt attends over no more than the keys up to them.

        A prompt is read in the same chunks whatever drafts afterwards, so the capacity may be left out of account.
        """
        self.seen = min(stepped(self.length + rows), self.capacity)
        try:
            yield
        finally:
            self.seen = self.capacity

    def check_room(self, rows: int) -> None:
        """Raise ValueError where the next pass cannot write that many."""
        if self.length + rows > self.capacity:
            raise ValueError(f"KV cache of {self.capacity} rows cannot hold {self.length + rows}")

    def commit(self, rows: int) -> None:
        """Keep the first ``rows`` of what the last pass wrote; the rest is overwritten by the next pass."""
        self.length += rows

    def adopt(self, other: KV, rows: int) -> None:
        """Start with a copy of another cache's first ``rows`` rows: a prompt prefix that is computed once."""
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            if theirs.keys is None or theirs.values is None:
                raise ValueError("the KV cache to adopt is empty: prefill it first")
            self.length = 0
            mine.update_and_fetch(theirs.keys[:, :, :rows], theirs.values[:, :, :rows])
        self.length = rows

    def view(self, layer: int) -> tuple[mx.array, mx.array]:
        """The backbone's own buffers of one layer, not copies: (1, kv_heads, capacity, head_dim) each, rotated keys.

        Rows from ``length`` on are left over from rejected drafts or unused: mask or cut them.
        """
        keys, values = self.layers[layer].keys, self.layers[layer].values
        if keys is None or values is None:
            raise ValueError("the KV cache is empty: prefill first")
        return keys, values

    @property
    def empty(self) -> bool:
        """Whether no pass has made the buffers yet."""
        return any(layer.keys is None for layer in self.layers)

    @property
    def buffers(self) -> list[tuple[mx.array, mx.array]]:
        """Every layer's ``view``; setting them is what a compiled pass does, which is given them and gives new ones."""
        return [self.view(layer) for layer in range(len(self.layers))]

    @buffers.setter
    def buffers(self, buffers: Sequence[tuple[mx.array, mx.array]]) -> None:
        for layer, (keys, values) in zip(self.layers, buffers, strict=True):
            layer.keys, layer.values = keys, values

    @property
    def nbytes(self) -> int:
        buffers = (buffer for layer in self.layers for buffer in (layer.keys, layer.values))
        return sum(buffer.nbytes for buffer in buffers if buffer is not None)
