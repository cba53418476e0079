"""The MTP drafter: runs the head k steps, greedily, over the backbone's own KV cache."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mtp_mlx.backbone import Backbone
from mtp_mlx.compiled import Compiled
from mtp_mlx.drafters.base import Context, Proposal, SteppingDrafter
from mtp_mlx.drafters.vocabulary import DraftVocabulary, make_vocabulary
from mtp_mlx.events import Draft, Guess
from mtp_mlx.head import MTPHead
from mtp_mlx.inspection import likeliest, looked_at


class MTPDrafter(SteppingDrafter):
    """Drafts from the head's vocabulary and the prompt's own tokens."""

    name = "mtp"

    def __init__(self, head: MTPHead, backbone: Backbone, *, vocabulary: DraftVocabulary | None = None):
        """``vocabulary``: what to draft from, where it is not the head's own."""
        self.head = head
        super().__init__(backbone)
        self.vocabulary = vocabulary or make_vocabulary(head.draft_vocab, backbone, frequent=head.config.frequent)

    def start(self, context: Context) -> None:
        self.vocabulary.start(context.tokens)
        # A trace holds the text's own output rows, so each text has its own.
        self._step = Compiled(self._one_step) if self.backbone.compiled else self._one_step

    def steps(self, context: Context, length: int) -> Proposal:
        t = context.kv.length  # the position of x_t
        kv, mask = self._seen(context)
        token, state = mx.array([context.tokens[-1]]), context.hidden[None]  # (1,), (1, 1, dim)
        ids, probabilities = [], []
        for step in range(length):
            offset = mx.array(t + step) if self.backbone.compiled else t + step  # a number would be part of the trace
            token, probability, state = self._step(token, state, offset, kv, mask)
            ids.append(token)
            probabilities.append(probability)
        return Proposal.of(ids, probabilities)

    def _one_step(
        self,
        token: mx.array,
        state: mx.array,
        offset: int | mx.array,
        kv: Sequence[tuple[mx.array, mx.array]],
        mask: mx.array | None,
    ) -> tuple[mx.array, mx.array, mx.array]:
        """token (1,) and state (1, 1, dim) at ``offset`` → the next token (1,), its probability (), the next state."""
        y, state = self.head(self.backbone.embed(token)[None], state, kv, offset=offset, mask=mask)
        return *self.vocabulary.best(y[0, -1]), state

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

    def _seen(self, context: Context) -> tuple[list[tuple[mx.array, mx.array]], mx.array | None]:
        """The K/V that a draft reads, and a mask over them: compiled steps need one shape for the whole text."""
        if not self.backbone.compiled:
            return self._kv(context), None
        whole = [context.kv.view(layer) for layer in self.head.config.kv_layers]
        return whole, mx.arange(context.kv.capacity)[None] < context.kv.length  # (1, capacity)

    def _kv(self, context: Context) -> list[tuple[mx.array, mx.array]]:
        """For each head layer the K/V that it reads: those of positions 0 to t − 1, at every step."""
        t = context.kv.length
        return [(k[:, :, :t], v[:, :, :t]) for k, v in map(context.kv.view, self.head.config.kv_layers)]
