"""A KV cache for several texts at once: one capacity for all, a length for each."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mtp_mlx.kv import KV


class LayerSlots:
    """One layer's keys and values, both (slots, kv_heads, capacity, head_dim), as mlx-lm's models expect a cache."""

    def __init__(self, owner: Slots):
        self._owner = owner
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    @property
    def offset(self) -> mx.array:
        """(slots,) the position of the next row that a pass writes for each text."""
        return self._owner.offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write (slots, kv_heads, rows, head_dim) behind each text's committed rows; return the whole buffers."""
        if self.keys is None or self.values is None:
            self.keys, self.values = self._owner.buffer(keys), self._owner.buffer(values)
        rows = self._owner.offset[:, None] + mx.arange(keys.shape[2])  # (slots, rows)
        at = mx.broadcast_to(rows[:, None, :, None], keys.shape)
        self.keys = mx.put_along_axis(self.keys, at, keys, axis=2)
        self.values = mx.put_along_axis(self.values, at, values, axis=2)
        return self.keys, self.values

    def make_mask(self, rows: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        """(slots, 1, rows, capacity) bool: each row sees its own text's committed keys and itself; see ``kv``."""
        query = (self._owner.offset[:, None] + mx.arange(rows))[:, None, :, None]
        key = mx.arange(self._owner.capacity)
        mask = key <= query
        return mask if window_size is None else mask & (query < key + window_size)


class Slots:
    """The KV caches of the texts of a batch; a roll back is nothing, as in ``kv.KV``.

    Args:
        layers: how many layers the backbone has.
        size: texts at once.
        capacity: rows for each.
    """

    def __init__(self, layers: int, *, size: int, capacity: int):
        self.size = size
        self.capacity = capacity
        self.lengths = [0] * size
        self.layers = [LayerSlots(self) for _ in range(layers)]

    @property
    def lengths(self) -> Sequence[int]:
        """Committed rows of each text."""
        return self._lengths

    @lengths.setter
    def lengths(self, lengths: Sequence[int]) -> None:
        self._lengths = tuple(lengths)
        self.offset = mx.array(self._lengths)  # (slots,)

    def commit(self, rows: Sequence[int]) -> None:
        """Keep the first of what the last pass wrote, a number of rows for each text; see ``kv.KV.commit``."""
        more = [*rows, *[0] * (self.size - len(rows))]
        self.lengths = [length + n for length, n in zip(self.lengths, more, strict=True)]

    def buffer(self, like: mx.array) -> mx.array:
        _, heads, _, dim = like.shape
        return mx.zeros((self.size, heads, self.capacity, dim), like.dtype)

    def share(self, prefix: KV) -> None:
        """Begin every text with the committed rows of a cache: a prompt prefix that is computed once."""
        for layer, (keys, values) in zip(self.layers, map(prefix.view, range(len(self.layers))), strict=True):
            for name, rows in (("keys", keys), ("values", values)):
                buffer = self.buffer(rows)
                buffer[:, :, : prefix.length] = rows[:, :, : prefix.length]
                setattr(layer, name, buffer)
        self.lengths = [prefix.length] * self.size

    def copy(self, slot: int, other: Slots, source: int) -> None:
        """Take over one text from another cache of the same capacity."""
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            for name in ("keys", "values"):
                rows = getattr(theirs, name)
                if getattr(mine, name) is None:
                    setattr(mine, name, self.buffer(rows))
                getattr(mine, name)[slot] = rows[source]
        self.lengths = [*self.lengths[:slot], other.lengths[source], *self.lengths[slot + 1 :]]

    def view(self, layer: int) -> tuple[mx.array, mx.array]:
        """The backbone's own buffers of one layer, (slots, kv_heads, capacity, head_dim) each; see ``kv.KV.view``."""
        keys, values = self.layers[layer].keys, self.layers[layer].values
        if keys is None or values is None:
            raise ValueError("the KV cache is empty: prefill first")
        return keys, values
