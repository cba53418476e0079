"""The standalone drafter: a small model that reads the text a second time, into a KV cache of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from mtp_mlx import cpu
from mtp_mlx.backbone import PREFILL_CHUNK, Backbone, nbytes
from mtp_mlx.compiled import Compiled
from mtp_mlx.drafters.base import Context, Proposal, SteppingDrafter
from mtp_mlx.drafters.vocabulary import make_vocabulary
from mtp_mlx.events import Round
from mtp_mlx.kv import KV, TracedKV
from mtp_mlx.standalone import Standalone


class StandaloneDrafter(SteppingDrafter):
    """Prefills the prompt, then drafts greedily, from the same reduced vocabulary as the MTP drafter.

    Between rounds it rolls its cache back to the committed text (Leviathan et al., 2022, arXiv:2211.17192).
    """

    name = "standalone"

    def __init__(self, drafter: Standalone, backbone: Backbone):
        self.drafter = drafter
        super().__init__(backbone)
        self._compiled_step = Compiled(self._static_step)
        self.vocabulary = make_vocabulary(drafter.draft_vocab, backbone, frequent=drafter.config.frequent)

    def ledger(self, rows: int) -> dict[str, int]:
        """What it takes on top of the backbone, in bytes, where the backbone's KV cache holds ``rows`` rows."""
        model = self.drafter.model
        embeddings = nbytes(model.model.embed_tokens)
        cache = self.backbone.kv_nbytes(rows) // len(self.backbone.model.layers) * len(model.layers)
        return {
            "standalone drafter": nbytes(model) - embeddings,
            "its embeddings": embeddings,
            "its KV cache": cache,
            "its draft vocabulary": self.vocabulary.nbytes,
        }

    def start(self, context: Context) -> None:
        self.vocabulary.start(context.tokens)
        self.kv = KV(len(self.drafter.model.layers), context.kv.capacity)
        for start in range(0, len(context.tokens) - 1, PREFILL_CHUNK):
            stop = min(start + PREFILL_CHUNK, len(context.tokens) - 1)
            with self.kv.reading(stop - start):
                mx.eval(self._states(mx.array(context.tokens[start:stop]), self.kv.layers))
            self.kv.commit(stop - start)

    def steps(self, context: Context, length: int) -> Proposal:
        committed = len(context.tokens) - 1  # as in the backbone's cache, the last token is not in this one yet
        fed = mx.array(context.tokens[self.kv.length :])
        ids, probabilities = [], []
        for _ in range(length):
            fed, probability = self.vocabulary.best(self._feed(fed)[-1])
            ids.append(fed)
            probabilities.append(probability)
        self.kv.length = min(committed, self.kv.length)
        return Proposal.of(ids, probabilities)

    def observe(self, context: Context, outcome: Round) -> None:
        """Keep the keys of the tokens that were fed and accepted: x_t and all drafted ones but the last."""
        if outcome.drafted:
            self.kv.commit(1 + min(outcome.accepted, len(outcome.drafted) - 1))

    def _feed(self, ids: mx.array) -> mx.array:
        """(n,) ids into the cache → (n, dim) post-norm states."""
        if self.backbone.compiled and len(ids) == 1 and not self.kv.empty:  # of more ids, each number would be traced
            self.kv.check_room(1)
            states, self.kv.buffers = self._compiled_step(ids, mx.array(self.kv.length), self.kv.buffers)
        else:
            states = self._states(ids, self.kv.layers)
        self.kv.commit(len(ids))
        return states

    def _static_step(
        self, ids: mx.array, offset: mx.array, buffers: Sequence[tuple[mx.array, mx.array]]
    ) -> tuple[mx.array, list[tuple[mx.array, mx.array]]]:
        """(n,) ids at ``offset`` → (n, dim) post-norm states, and the buffers with those rows."""
        layers = [TracedKV(offset, *pair) for pair in buffers]
        states = self._states(ids, layers)
        return states, [(layer.keys, layer.values) for layer in layers]

    def _states(self, ids: mx.array, layers: Sequence[Any]) -> mx.array:
        """(n,) ids, with a cache for each layer → (n, dim) post-norm states."""
        with cpu.one_pass(self.drafter.model):
            return self.drafter.model.model(ids[None], cache=layers)[0]
