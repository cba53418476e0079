"""A frozen mlx-lm model behind one narrow interface: prefill, and decode passes of one fixed shape."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import dequantize_model, load

from mtp_mlx import cpu
from mtp_mlx.compiled import Compiled
from mtp_mlx.cpu import products
from mtp_mlx.kv import KV, TracedKV
from mtp_mlx.weights import Report, WeightsError, fingerprint, refuse_drafter, unheard, verify

PREFILL_CHUNK = 256
REDOWNLOAD = "get the folder again (git checkout, or mtp-mlx convert)"


@dataclass(frozen=True)
class Pass:
    """What one decode pass computed for the rows in use: logits (rows, vocab), hidden (rows, dim) post-norm."""

    logits: mx.array
    hidden: mx.array


@dataclass(frozen=True)
class Prefix:
    """The KV cache of the ids that many prompts begin with, filled once.

    It has a capacity of its own, so that what is computed in it is the same bits for every prompt that adopts it.
    """

    ids: tuple[int, ...]
    kv: KV


class Backbone:
    """The model, its tokenizer, and the shape of its decode passes.

    Args:
        model: an mlx-lm model (``model.model`` gives post-norm states; tied or separate output matrix).
        tokenizer: its mlx-lm tokenizer.
        path: where it came from; its fingerprint is what heads are bound to.
        row_by_row: verify each drafted token in a pass of its own: slow, and exact where rows of one pass
            round differently.
        compiled: compile decode passes and draft steps, and put a pass together while its draft is in the making. By
            default on a GPU, which would else wait for Python. Every pass is the compiled one, whatever was drafted.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: TokenizerWrapper,
        path: Path,
        *,
        row_by_row: bool = False,
        compiled: bool | None = None,
    ):
        self.model: Any = model  # every mlx-lm model has its own class
        self.tokenizer = tokenizer
        self.path = path
        self.row_by_row = row_by_row
        self.compiled = mx.default_device() != mx.Device(mx.cpu) if compiled is None else compiled
        self._compiled_pass = Compiled(self._static_pass) if self.compiled else self._static_pass
        self.eos: frozenset[int] = frozenset(tokenizer.eos_token_ids)

    @property
    def args(self) -> Any:
        """The model's mlx-lm arguments (hidden_size, num_attention_heads, ...)."""
        return self.model.args

    @property
    def head_dim(self) -> int:
        """Of an attention head; not every family says it."""
        return getattr(self.args, "head_dim", None) or self.args.hidden_size // self.args.num_attention_heads

    @property
    def untied(self) -> bool:
        """Whether the output matrix is another one than the embeddings."""
        return not getattr(self.args, "tie_word_embeddings", not hasattr(self.model, "lm_head"))

    @property
    def nbytes(self) -> int:
        """Bytes of the weights as they are in memory."""
        return nbytes(self.model)

    @property
    def dtype(self) -> mx.Dtype:
        """The floating-point type of its states and KV cache."""
        return self.model.model.norm.weight.dtype

    @cached_property
    def fingerprint(self) -> str:
        """What a head that was trained on this backbone is bound to."""
        return fingerprint(self.path)

    @cached_property
    def vocab_hash(self) -> str:
        """SHA-256 of the token map, text → id: drafters of another vocabulary are told by it, not by its size."""
        return hashlib.sha256(json.dumps(sorted(self.tokenizer.get_vocab().items())).encode()).hexdigest()

    def embed(self, ids: mx.array) -> mx.array:
        """Input embeddings of ids, de-quantised: (..., ids) → (..., ids, dim)."""
        return self.model.model.embed_tokens(ids)

    def output_rows(self, ids: mx.array) -> mx.array:
        """Rows of the output matrix, de-quantised: (n,) ids → (n, dim)."""
        if not self.untied:
            return self.embed(ids)
        head = self.model.lm_head
        if isinstance(head, nn.QuantizedLinear):
            parts = (head.weight[ids], head.scales[ids], None if head.biases is None else head.biases[ids])
            return mx.dequantize(*parts, head.group_size, head.bits, head.mode)
        return head.weight[ids]

    def logits(self, hidden: mx.array) -> mx.array:
        """(..., dim) post-norm states → (..., vocab)."""
        if self.untied:
            return self.model.lm_head(hidden)
        table = self.model.model.embed_tokens
        return products.product(hidden, table.weight) if type(table) is nn.Embedding else table.as_linear(hidden)

    def states(self, ids: mx.array, cache: Sequence[Any]) -> mx.array:
        """One pass over (batch, rows) ids with an mlx-lm cache for each layer: post-norm states (batch, rows, dim)."""
        with cpu.one_pass(self.model):
            return self.model.model(ids, cache=cache)

    def make_kv(self, rows: int) -> KV:
        """An empty KV cache for at most ``rows`` rows: prompt + token budget + width."""
        return KV(len(self.model.layers), rows, few=self.compiled)

    def kv_nbytes(self, rows: int) -> int:
        """Bytes of a KV cache for ``rows`` rows."""
        heads, layers = self.args.num_key_value_heads, len(self.model.layers)
        return 2 * layers * heads * self.head_dim * self.make_kv(rows).capacity * self.dtype.size

    def prefill(self, ids: Sequence[int], kv: KV, *, last: int = 1) -> mx.array:
        """Put ids into the KV cache, in chunks; return the post-norm states of the ``last`` ones, (last, dim).

        Where there are fewer ids than ``last``, zeros stand for the states before them.
        """
        states = [mx.zeros((last, self.args.hidden_size), self.dtype)]
        for start in range(0, len(ids), PREFILL_CHUNK):
            chunk = mx.array([ids[start : start + PREFILL_CHUNK]])  # (1, rows)
            with kv.reading(chunk.shape[1]):
                states.append(self.states(chunk, kv.layers)[0])
            kv.commit(chunk.shape[1])
            mx.eval(states[-1], [(layer.keys, layer.values) for layer in kv.layers])
        return mx.concatenate(states)[-last:]

    def prefix(self, ids: Sequence[int]) -> Prefix:
        """Prefill the ids that prompts have in common; see ``decode.speculative``."""
        kv = self.make_kv(len(ids))
        self.prefill(ids, kv)
        return Prefix(tuple(ids), kv)

    def forward(self, ids: list[int] | mx.array, kv: KV, *, width: int) -> Pass:
        """One decode pass: the next ``len(ids)`` positions, in exactly ``width`` rows; commits nothing.

        Unused rows are fed token 0: no used row sees them, and the next pass overwrites their keys.

        Args:
            ids: at most ``width`` of them; an array of them (n,) may still be in the making.
        """
        if self.row_by_row and len(ids) > 1:
            return self._forward_row_by_row(ids, kv, width)
        n = len(ids)
        rows = mx.pad(mx.array(ids, mx.int32), (0, width - n))[None]  # (1, width)
        if self.compiled:
            logits, hidden = self._forward_compiled(rows, kv)
        else:
            hidden = self.states(rows, kv.layers)[0]  # (width, dim)
            logits = self.logits(hidden)  # (width, vocab)
        return Pass(logits[:n], hidden[:n])

    def _forward_compiled(self, rows: mx.array, kv: KV) -> tuple[mx.array, mx.array]:
        kv.check_room(rows.shape[1])
        if kv.empty:
            self.states(rows, kv.layers)  # which makes the buffers; what it writes is written over
        logits, hidden, kv.buffers = self._compiled_pass(rows, mx.array(kv.length), kv.buffers)
        return logits, hidden

    def _static_pass(
        self, rows: mx.array, offset: mx.array, buffers: Sequence[tuple[mx.array, mx.array]]
    ) -> tuple[mx.array, mx.array, list[tuple[mx.array, mx.array]]]:
        """(1, width) ids at ``offset`` → logits (width, vocab), hidden (width, dim) and the buffers with those rows."""
        layers = [TracedKV(offset, *pair) for pair in buffers]
        hidden = self.states(rows, layers)[0]
        return self.logits(hidden), hidden, [(layer.keys, layer.values) for layer in layers]

    def _forward_row_by_row(self, ids: list[int] | mx.array, kv: KV, width: int) -> Pass:
        start, passes = kv.length, []
        for token in np.array(ids).tolist():
            passes.append(self.forward([token], kv, width=width))
            mx.eval(passes[-1].logits, passes[-1].hidden)
            kv.commit(1)
        kv.length = start
        return Pass(mx.concatenate([p.logits for p in passes]), mx.concatenate([p.hidden for p in passes]))


def nbytes(module: nn.Module) -> int:
    """Bytes of a module's parameters."""
    arrays: Any = tree_flatten(module.parameters())
    return sum(array.nbytes for _, array in arrays)


def load_backbone(path: Path, *, row_by_row: bool = False, report: Report = unheard) -> Backbone:
    """Load a folder in mlx-lm's layout; on the CPU, quantized weights become float32 (exactly: w = q · scale + bias).

    Args:
        report: hears of the stages ``check``, ``read`` and ``unpack``.

    Raises:
        WeightsError: the folder is missing, damaged, or not a model that mlx-lm loads.
    """
    verify(path, cure=REDOWNLOAD, report=report)
    refuse_drafter(path)
    report("read", 0, 0)
    try:
        model, tokenizer = load(str(path))[:2]
        if mx.default_device() == mx.Device(mx.cpu):
            model.set_dtype(mx.float32)
            model = dequantize_model(model)
        cpu.adapt(model)
    except Exception as error:  # mlx and mlx-lm raise many kinds for a truncated or foreign file
        raise WeightsError(f"{path} cannot be loaded ({error}): {REDOWNLOAD}") from error
    model.eval()
    done, size = 0, nbytes(model)
    arrays: Any = tree_flatten(model.parameters())
    for _, array in arrays:
        mx.eval(array)
        done += array.nbytes
        report("unpack", done, size)
    return Backbone(model, tokenizer, path, row_by_row=row_by_row)
