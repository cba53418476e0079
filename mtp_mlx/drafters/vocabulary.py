"""The few thousand ids that a draft may hold, and their output rows, gathered once a text."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from mtp_mlx.backbone import Backbone


class DraftVocabulary:
    """A fixed vocabulary, and the ids of the text at hand: names and typos are what gets copied.

    Source: FR-Spec (arXiv:2502.14856) for the reduced output matrix; the prompt's own tokens are added here.
    """

    def __init__(self, ids: mx.array, backbone: Backbone):
        """``ids``: (n,) int32."""
        self.backbone = backbone
        self.fixed = ids
        self.ids, self._own_rows = ids, None
        self._known = set(np.array(ids).tolist())
        self._rows = backbone.output_rows(ids)  # (n, dim)
        mx.eval(self._rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that every text shares."""
        return self._rows.nbytes

    def start(self, tokens: Sequence[int]) -> None:
        """A new text begins with these tokens."""
        own = sorted(set(tokens) - self._known)
        extra = mx.array(own, mx.int32)
        self.ids = mx.concatenate([self.fixed, extra])
        self._own_rows = self.backbone.output_rows(extra) if own else None  # (own, dim)

    def logits(self, y: mx.array) -> mx.array:
        """(..., dim) → (..., ids), in the order of ``ids``."""
        parts = [self._rows] if self._own_rows is None else [self._rows, self._own_rows]
        return mx.concatenate([y @ rows.T for rows in parts], axis=-1)

    def best_of(self, y: mx.array, texts: Sequence[DraftVocabulary | None]) -> tuple[mx.array, mx.array]:
        """(texts, dim) → the most probable id of each, (texts,), and its probability, (texts,).

        ``texts`` are copies of this vocabulary that have started; the rows that they share are read once for all.
        """
        common = y @ self._rows.T  # (texts, n)
        ids, probabilities = [], []
        for i, text in enumerate(texts):
            text = text or self
            own = text._own_rows
            logits = common[i] if own is None else mx.concatenate([common[i], y[i] @ own.T])
            best = mx.argmax(logits)
            ids.append(text.ids[best])
            probabilities.append(mx.exp(logits[best] - mx.logsumexp(logits)))
        return mx.stack(ids), mx.stack(probabilities)

    def best(self, y: mx.array) -> tuple[mx.array, mx.array]:
        """(dim,) → the most probable id, (1,), and its probability, ()."""
        logits = self.logits(y)
        best = mx.argmax(logits)
        return self.ids[best][None], mx.exp(logits[best] - mx.logsumexp(logits))
