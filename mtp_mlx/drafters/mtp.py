"""The MTP drafter: runs the head k steps, greedily, over the backbone's own KV cache."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from mtp_mlx.backbone import Backbone
from mtp_mlx.drafters.base import Context, Drafter
from mtp_mlx.events import Draft
from mtp_mlx.head import MTPHead


class MTPDrafter(Drafter):
    """Drafts from the head's vocabulary and the prompt's own tokens."""

    name = "mtp"

    def __init__(self, head: MTPHead, backbone: Backbone):
        self.head = head
        self.backbone = backbone
        self._known = set(np.array(head.draft_vocab).tolist())
        self._rows = backbone.output_rows(head.draft_vocab)  # (draft vocab, dim)
        mx.eval(self._rows)

    def start(self, context: Context) -> None:
        own = sorted(set(context.tokens) - self._known)  # names and typos are what gets copied
        prompt = mx.array(own, mx.int32)
        self._ids = mx.concatenate([self.head.draft_vocab, prompt])
        self._prompt_rows = self.backbone.output_rows(prompt) if own else None  # (own, dim)

    def logits(self, y: mx.array) -> mx.array:
        """(..., dim) → (..., draft vocab + own), in the order of the ids gathered at the start."""
        parts = [self._rows] if self._prompt_rows is None else [self._rows, self._prompt_rows]
        return mx.concatenate([y @ rows.T for rows in parts], axis=-1)

    def draft(self, context: Context, length: int) -> Draft:
        t = context.kv.length  # the position of x_t; keys 0 to t − 1 are visible at every step
        kv = [(k[:, :, :t], v[:, :, :t]) for k, v in map(context.kv.view, self.head.config.kv_layers)]
        state = context.hidden[None]  # (1, 1, dim)
        token = mx.array([context.tokens[-1]])
        ids, probabilities = [], []
        for step in range(length):
            y, state = self.head(self.backbone.embed(token)[None], state, kv, offset=t + step)
            logits = self.logits(y)[0, -1]
            best = mx.argmax(logits)
            ids.append(token := self._ids[best][None])
            probabilities.append(mx.exp(logits[best] - mx.logsumexp(logits)))
        mx.eval(ids, probabilities)
        return Draft(tuple(int(i) for i in ids), tuple(float(p) for p in probabilities))
