"""The MTP drafter: runs the head k steps, greedily, over the backbone's own KV cache."""

from __future__ import annotations

import mlx.core as mx

from mtp_mlx.backbone import Backbone
from mtp_mlx.drafters.base import Context, Drafter
from mtp_mlx.drafters.vocabulary import DraftVocabulary, make_vocabulary
from mtp_mlx.events import Draft, Guess
from mtp_mlx.head import MTPHead
from mtp_mlx.inspection import likeliest, looked_at


class MTPDrafter(Drafter):
    """Drafts from the head's vocabulary and the prompt's own tokens."""

    name = "mtp"

    def __init__(self, head: MTPHead, backbone: Backbone, *, vocabulary: DraftVocabulary | None = None):
        """``vocabulary``: what to draft from, where it is not the head's own."""
        self.head = head
        self.backbone = backbone
        self.vocabulary = vocabulary or make_vocabulary(head.draft_vocab, backbone, frequent=head.config.frequent)

    def start(self, context: Context) -> None:
        self.vocabulary.start(context.tokens)

    def draft(self, context: Context, length: int) -> Draft:
        t = context.kv.length  # the position of x_t
        kv = self._kv(context)
        state = context.hidden[None]  # (1, 1, dim)
        token = mx.array([context.tokens[-1]])
        ids, probabilities = [], []
        for step in range(length):
            y, state = self.head(self.backbone.embed(token)[None], state, kv, offset=t + step)
            token, probability = self.vocabulary.best(y[0, -1])
            ids.append(token)
            probabilities.append(probability)
        mx.eval(ids, probabilities)
        return Draft(tuple(int(i) for i in ids), tuple(float(p) for p in probabilities))

    def look(self, context: Context, draft: Draft) -> tuple[Guess, ...]:
        """Take the head's steps again, over the tokens that were drafted."""
        kv = self._kv(context)
        state = context.hidden[None]
        guesses = []
        for step, token in enumerate([context.tokens[-1], *draft.ids][: len(draft.ids)]):
            inputs = self.backbone.embed(mx.array([[token]])), state, kv
            offset = context.kv.length + step
            attention = self.head.attention(*inputs, offset=offset)
            y, state = self.head(*inputs, offset=offset)
            ids, logits = self.vocabulary.candidates(y[0, -1])
            top = likeliest(logits, ids=ids)
            guesses.append(Guess(top, tuple(looked_at(shares[0, 0]) for shares in attention)))
        return tuple(guesses)

    def _kv(self, context: Context) -> list[tuple[mx.array, mx.array]]:
        """For each head layer the K/V that it reads: those of positions 0 to t − 1, at every step."""
        t = context.kv.length
        return [(k[:, :, :t], v[:, :, :t]) for k, v in map(context.kv.view, self.head.config.kv_layers)]
