"""The few thousand ids that a draft may hold, and the most probable of them after a state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from mtp_mlx.backbone import Backbone
from mtp_mlx.cpu import powers
from mtp_mlx.cpu.products import product

FREQUENT = 2048  # ids that are always candidates; with fewer, more of the best ones are missed
CLUSTER = 16  # ids that share a centroid
NEAREST = 32  # clusters whose ids are candidates

Best = tuple[mx.array, mx.array, mx.array]  # an id, its logit, and the sum of e^(logit − its own) over all candidates


class DraftVocabulary:
    """A fixed vocabulary, and the ids of the text at hand: names and typos are what gets copied.

    Source: FR-Spec (arXiv:2502.14856) for the reduced output matrix; the prompt's own tokens are added here.
    """

    def __init__(self, ids: mx.array, backbone: Backbone):
        """``ids``: (n,) int32."""
        self.backbone = backbone
        self.fixed = self.ids = ids
        self._own, self._own_rows = mx.array([], mx.int32), None
        self._known = set(np.array(ids).tolist())
        self._rows = backbone.output_rows(ids)  # (n, dim)
        mx.eval(self._rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that every text shares."""
        return self._rows.nbytes

    @property
    def step_nbytes(self) -> int:
        """Bytes that one draft step reads, without the rows of the text's own ids."""
        return self.nbytes

    def start(self, tokens: Sequence[int]) -> None:
        """A new text begins with these tokens."""
        own = sorted(set(tokens) - self._known)
        self._own = mx.array(own, mx.int32)
        self.ids = mx.concatenate([self.fixed, self._own])  # (n,): always candidates
        self._own_rows = self.backbone.output_rows(self._own) if own else None  # (own, dim)

    def candidates(self, y: mx.array) -> tuple[mx.array, mx.array]:
        """(dim,) → the ids that may follow, (n,), and their logits, (n,)."""
        logits = product(y, self._rows)
        return self.ids, logits if self._own_rows is None else mx.concatenate([logits, product(y, self._own_rows)])

    def best(self, y: mx.array) -> tuple[mx.array, mx.array]:
        """(dim,) → the most probable id, (1,), and its probability, ()."""
        id, _, total = _best(*self.candidates(y))
        return id[None], 1 / total

    def best_of(self, y: mx.array, texts: Sequence[DraftVocabulary | None]) -> tuple[mx.array, mx.array]:
        """(texts, dim) → the most probable id of each, (texts,), and its probability, (texts,).

        ``texts`` are copies of this vocabulary that have started; the rows that they share are read once for all, and
        what is a text's own has its own shape, so that its bits depend on no other text.
        """
        shared = _best(*self._shared(y, [text or self for text in texts]))
        own = [(text or self)._best_own(y[i]) for i, text in enumerate(texts)]
        parts = zip(shared, map(mx.stack, map(list, zip(*own, strict=True))), strict=True)
        ids, logits, totals = (mx.stack(part) for part in map(list, parts))  # (2, texts) each
        first = mx.argmax(logits, axis=0, keepdims=True)  # (1, texts)
        best = mx.take_along_axis(logits, first, axis=0)
        total = (totals * powers.exp(logits - best)).sum(axis=0)  # (texts,)
        return mx.take_along_axis(ids, first, axis=0)[0], 1 / total

    def _shared(self, y: mx.array, texts: Sequence[Any]) -> tuple[mx.array, mx.array]:
        """(texts, dim) → the candidates that are not a text's own, and their logits, (texts, n) each."""
        logits = product(y, self._rows)
        return mx.broadcast_to(self.fixed, logits.shape), logits

    def _best_own(self, y: mx.array) -> Best:
        """The best of the text's own ids after (dim,)."""
        if self._own_rows is None:
            return mx.array(0, mx.int32), mx.array(-np.inf), mx.array(0.0)
        return _best(self._own, product(y, self._own_rows))


def _best(ids: mx.array, logits: mx.array) -> Best:
    """(..., n) each → the most probable id, its logit, and the sum of all e^(logit − that one), (...) each."""
    logits = logits.astype(mx.float32)
    at = mx.argmax(logits, axis=-1, keepdims=True)
    best = mx.take_along_axis(logits, at, axis=-1)
    total = powers.exp(logits - best).sum(axis=-1)
    return mx.take_along_axis(ids, at, axis=-1).squeeze(-1), best.squeeze(-1), total


class CentroidVocabulary(DraftVocabulary):
    """The frequent ids and the text's own, as above; of the others, those of the clusters nearest to the state.

    Source: Gemma 4's drafters, which have 2,048 centroids for the whole vocabulary and look into the best 32. There
    the centroids are trained; here one is the mean of its rows, which is why the frequent ids do without.
    """

    def __init__(self, ids: mx.array, backbone: Backbone, *, frequent: int):
        """``ids``: (n,) int32 in the order of ``by_cluster``, the first ``frequent`` of them not in clusters."""
        if (len(ids) - frequent) % CLUSTER:
            raise ValueError(f"{len(ids) - frequent} ids are no clusters of {CLUSTER}: get the head's folder again")
        super().__init__(ids[:frequent], backbone)
        self._cluster_ids = ids[frequent:].reshape(-1, CLUSTER)
        rows = backbone.output_rows(ids[frequent:])
        self._clusters = rows.reshape(-1, CLUSTER, rows.shape[-1])  # (clusters, CLUSTER, dim)
        self._centroids = self._clusters.mean(axis=1)  # (clusters, dim)
        self._taken = mx.zeros(self._cluster_ids.shape)
        mx.eval(self._clusters, self._centroids)

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes + self._clusters.nbytes + self._centroids.nbytes

    @property
    def step_nbytes(self) -> int:
        return self._rows.nbytes + self._centroids.nbytes + min(NEAREST, len(self._clusters)) * self._clusters[0].nbytes

    def start(self, tokens: Sequence[int]) -> None:
        super().start(tokens)
        own = np.isin(np.array(self._cluster_ids), list(tokens))  # are candidates already
        self._taken = mx.array(np.where(own, -np.inf, 0).astype(np.float32))  # (clusters, CLUSTER)

    def candidates(self, y: mx.array) -> tuple[mx.array, mx.array]:
        ids, logits = super().candidates(y)
        near = self._near(y)
        others = self._clusters[near] @ y + self._taken[near]  # (nearest, CLUSTER): of one text, gathering is faster
        return mx.concatenate([ids, self._cluster_ids[near].flatten()]), mx.concatenate([logits, others.flatten()])

    def _shared(self, y: mx.array, texts: Sequence[Any]) -> tuple[mx.array, mx.array]:
        ids, logits = super()._shared(y, texts)
        near, row = self._near(y), mx.arange(len(texts))[:, None]
        columns = self._clusters.swapaxes(1, 2)  # (clusters, dim, CLUSTER): multiplied where they are
        others = mx.gather_mm(y[:, None], columns, row, near).squeeze(2)  # (texts, nearest, CLUSTER)
        others = others + mx.stack([text._taken for text in texts])[row, near]
        return (
            mx.concatenate([ids, self._cluster_ids[near].flatten(1)], axis=1),
            mx.concatenate([logits, others.flatten(1)], axis=1),
        )

    def _near(self, y: mx.array) -> mx.array:
        """(..., dim) → the clusters whose ids are candidates, (..., nearest)."""
        nearest = min(NEAREST, len(self._clusters))
        return mx.argpartition(-product(y, self._centroids), nearest - 1, axis=-1)[..., :nearest]


def make_vocabulary(ids: mx.array, backbone: Backbone, *, frequent: int | None) -> DraftVocabulary:
    """With centroids if the ids were put in order for them, and there are more than the ``frequent`` ones."""
    if frequent is None or frequent == len(ids):
        return DraftVocabulary(ids, backbone)
    return CentroidVocabulary(ids, backbone, frequent=frequent)


def by_cluster(ids: mx.array, backbone: Backbone, *, frequent: int = FREQUENT) -> tuple[mx.array, int]:
    """Order a vocabulary for centroids: ``CLUSTER`` ids after one another have output rows that point alike.

    Args:
        ids: (n,) int32, the most frequent first.
        frequent: how many stay in front, out of clusters; a few more where the rest would not fill the last cluster.

    Returns:
        The ids in their new order, and how many are in front.
    """
    frequent = len(ids) - max(0, len(ids) - frequent) // CLUSTER * CLUSTER
    rows = np.array(backbone.output_rows(ids[frequent:]), np.float32)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
    order = _halved(rows, np.arange(len(rows)))
    return mx.concatenate([ids[:frequent], ids[frequent:][mx.array(order, mx.int32)]]), frequent


def _halved(rows: np.ndarray, members: np.ndarray) -> np.ndarray:
    """``members`` in the order of clusters: cut in two across the direction in which their rows differ most, and on."""
    if len(members) <= CLUSTER:
        return members
    apart = rows[members] - rows[members].mean(axis=0)
    direction = apart[(apart**2).sum(axis=1).argmax()]
    for _ in range(12):  # power iteration
        direction = apart.T @ (apart @ direction)
        direction /= max(np.linalg.norm(direction), 1e-9)
    members = members[np.argsort(apart @ direction, kind="stable")]
    half = (len(members) // CLUSTER + 1) // 2 * CLUSTER
    return np.concatenate([_halved(rows, members[:half]), _halved(rows, members[half:])])
