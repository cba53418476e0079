"""Cached features: what a head reads, computed once from the frozen backbone and kept on disk in float16."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from safetensors import safe_open
from tqdm import tqdm

from mtp_mlx.backbone import Backbone
from mtp_mlx.kv import KV
from mtp_mlx.training.texts import DataError, Example

SHARD = 256  # examples a file


@dataclass(frozen=True)
class Features:
    """One example as a student sees it: n tokens, with an anchor to draft from at each from ``start`` on, but the last.

    Only the ids are in memory: the rest is read from the shard's file whenever it is asked for.

    Attributes:
        ids: (n,) int32, prompt and answer.
        start: the position of the first anchor.
        first: the position of the last prompt token, the first anchor of the answer.
        read: the array of a name, with its rows from position ``start`` on where it has one a position.
    """

    ids: np.ndarray
    start: int
    first: int
    held_back: bool
    task: str
    read: Callable[[str], np.ndarray]

    @property
    def anchors(self) -> int:
        """Positions to draft from: ``start`` to the last token but one."""
        return len(self.ids) - 1 - self.start

    @property
    def hidden(self) -> np.ndarray:
        """(anchors + 2, dim) float16, the backbone's post-norm states from position start − 1 on."""
        return self.read("hidden")

    @property
    def best(self) -> np.ndarray:
        """(anchors + 1,) int32, what the backbone would write after each position from ``start`` on."""
        return self.read("best")

    @property
    def keys(self) -> np.ndarray:
        """(head layers, kv_heads, n, head_dim) float16, of the backbone layers that the head reads."""
        return self.read("keys")

    @property
    def values(self) -> np.ndarray:
        """(head layers, kv_heads, n, head_dim) float16, as the keys."""
        return self.read("values")

    def answer_only(self) -> Features:
        """The same example with no anchor before the last prompt token: what drafting will meet."""
        skipped, read = self.first - self.start, self.read

        def read_answer(name: str) -> np.ndarray:
            return read(name)[skipped:] if name in ("hidden", "best") else read(name)

        return replace(self, start=self.first, read=read_answer)


def extract(
    backbone: Backbone, examples: Sequence[Example], folder: Path, *, kv_layers: Sequence[int], prompts: bool = False
) -> None:
    """Write the features of every example to ``folder``, a shard at a time; whole shards are kept.

    Args:
        prompts: with anchors in the prompts' texts, not only in the answers.

    Raises:
        DataError: the folder holds features of another backbone, other layers or other anchors.
    """
    folder.mkdir(parents=True, exist_ok=True)
    about = {
        "backbone": backbone.fingerprint,
        "kv_layers": json.dumps(list(kv_layers)),
        "prompts": json.dumps(prompts),
    }
    prefixes = Prefixes(backbone)
    for number, start in enumerate(tqdm(range(0, len(examples), SHARD), desc="features", unit="shard")):
        batch = examples[start : start + SHARD]
        path = folder / f"{number:05}.safetensors"
        if path.exists():
            meta = safe_open(str(path), framework="numpy").metadata()
            if any(meta[key] != value for key, value in about.items()):
                raise DataError(
                    f"{folder} holds features of another backbone, other layers or anchors: give another --run"
                )
            if json.loads(meta["ids"]) == [example.id for example in batch]:
                continue
        arrays = {}
        for i, example in sorted(enumerate(batch), key=lambda pair: pair[1].prompt):  # shared prefixes in a row
            start = _first_anchor(example, prompts=prompts)
            for name, array in _compute(backbone, prefixes, example, start, kv_layers).items():
                arrays[f"{i}.{name}"] = array
        scratch = folder / "unfinished.safetensors"
        mx.save_safetensors(
            str(scratch),
            arrays,
            {
                **about,
                "ids": json.dumps([e.id for e in batch]),
                "tasks": json.dumps([e.task for e in batch]),
                "held_back": json.dumps([e.held_back for e in batch]),
                "start": json.dumps([_first_anchor(e, prompts=prompts) for e in batch]),
                "first": json.dumps([len(e.prompt) - 1 for e in batch]),
            },
        )
        scratch.rename(path)


class Prefixes:
    """Computes states of token sequences; what a sequence shares with the one before it is not computed again."""

    def __init__(self, backbone: Backbone):
        self.backbone = backbone
        self._ids: list[int] = []
        self._kv: KV | None = None

    def states(self, ids: list[int], *, needed_from: int) -> tuple[mx.array, KV]:
        """Post-norm states (n − needed_from, dim) of ids from a position on, and a KV cache that holds all of them."""
        pairs = enumerate(zip(self._ids, ids, strict=False))
        shared = next((i for i, (old, new) in pairs if old != new), min(len(self._ids), len(ids)))
        kv = self.backbone.make_kv(len(ids))
        if self._kv is not None and (shared := min(shared, needed_from)):
            kv.adopt(self._kv, shared)
        states = self.backbone.prefill(ids[kv.length :], kv, last=len(ids) - needed_from)
        self._ids, self._kv = ids, kv
        return states, kv


def _first_anchor(example: Example, *, prompts: bool) -> int:
    """The last token of the prompt, or the first of its text, but for the very first, which has no state before it."""
    return max(example.start, 1) if prompts else len(example.prompt) - 1


def _compute(
    backbone: Backbone, prefixes: Prefixes, example: Example, start: int, kv_layers: Sequence[int]
) -> dict[str, mx.array]:
    ids = [*example.prompt, *example.answer]
    hidden, kv = prefixes.states(ids, needed_from=start - 1)
    views = [kv.view(layer) for layer in kv_layers]
    arrays = {
        "ids": mx.array(ids, mx.int32),
        "hidden": hidden.astype(mx.float16),
        "best": mx.argmax(backbone.logits(hidden[1:]), axis=-1).astype(mx.int32),
        "keys": mx.concatenate([k[:, :, : len(ids)] for k, _ in views]).astype(mx.float16),
        "values": mx.concatenate([v[:, :, : len(ids)] for _, v in views]).astype(mx.float16),
    }
    mx.eval(arrays)
    return arrays


def read_features(folder: Path, *, held_back: bool) -> list[Features]:
    """The examples of a split, in an order that is theirs alone: generation writes them in another after a kill."""
    return sorted(_shards(folder, held_back), key=lambda f: hashlib.sha256(f.ids.tobytes()).digest())


def held_back_features(folder: Path, *, a_task: int = 128) -> list[Features]:
    """A few examples of each task that training does not see: what it is measured on."""
    chosen: dict[str, list[Features]] = defaultdict(list)
    for example in read_features(folder, held_back=True):
        if len(chosen[example.task]) < a_task:
            chosen[example.task].append(example)
    return [example for task in sorted(chosen) for example in chosen[task]]


def _shards(folder: Path, held_back: bool) -> Iterator[Features]:
    for path in sorted(folder.glob("[0-9]*.safetensors")):
        shard: Any = safe_open(str(path), framework="numpy")  # mapped: what is read is not kept
        meta = shard.metadata()
        columns = [json.loads(meta[name]) for name in ("tasks", "held_back", "start", "first")]
        for i, (task, held, start, first) in enumerate(zip(*columns, strict=True)):
            if held == held_back:
                ids = shard.get_tensor(f"{i}.ids")
                yield Features(ids, start, first, held, task, partial(_tensor, shard, i))


def _tensor(shard: Any, example: int, name: str) -> np.ndarray:
    return shard.get_tensor(f"{example}.{name}")


def batches(examples: Sequence[Features], *, anchors: int, order: Sequence[int]) -> Iterator[list[Features]]:
    """Groups of examples with at most ``anchors`` anchors each (padded), in ``order``, alike in length."""
    queue = iter(order)
    while window := list(islice(queue, 64)):
        window.sort(key=lambda i: (examples[i].anchors, len(examples[i].ids)))
        group: list[Features] = []
        for i in window:
            if group and (len(group) + 1) * examples[i].anchors > anchors:
                yield group
                group = []
            group.append(examples[i])
        if group:
            yield group
