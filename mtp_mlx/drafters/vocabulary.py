"""The few thousand ids that a draft may hold, and the most probable of them after a state."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from mtp_mlx.backbone import Backbone

FREQUENT = 2048  # ids that are always candidates; with fewer, more of the best ones are missed
CLUSTER = 16  # ids that share a centroid
NEAREST = 32  # clusters whose ids are candidates


class DraftVocabulary:
    """A fixed vocabulary, and the ids of the text at hand: names and typos are what gets copied.

    Source: FR-Spec (arXiv:2502.14856) for the reduced output matrix; the prompt's own tokens are added here.
    """

    def __init__(self, ids: mx.array, backbone: Backbone):
        """``ids``: (n,) int32."""
        self.backbone = backbone
        self.fixed = ids
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
        extra = mx.array(own, mx.int32)
        self.ids = mx.concatenate([self.fixed, extra])
        self._own_rows = self.backbone.output_rows(extra) if own else None  # (own, dim)

    def logits(self, y: mx.array) -> mx.array:
        """(..., dim) → (..., ids), in the order of ``ids``."""
        parts = [self._rows] if self._own_rows is None else [self._rows, self._own_rows]
        return mx.concatenate([y @ rows.T for rows in parts], axis=-1)

    def candidates(self, y: mx.array) -> tuple[mx.array, mx.array]:
        """(dim,) → the ids that may follow, (n,), and their logits, (n,)."""
        return self.ids, self.logits(y)

    def best(self, y: mx.array) -> tuple[mx.array, mx.array]:
        """(dim,) → the most probable id, (1,), and its probability, ()."""
        ids, logits = self.candidates(y)
        best = mx.argmax(logits)
        return ids[best][None], mx.exp(logits[best] - mx.logsumexp(logits))


class CentroidVocabulary(DraftVocabulary):
    """The frequent ids and the text's own, as above; of the others, those of the clusters nearest to the state.

    Source: Gemma 4's drafters, which have 2,048 centroids for the whole vocabulary and look into the best 32. There
    the centroids are trained; here one is the mean of its rows, which is why the frequent ids do without.
    """

    def __init__(self, ids: mx.array, backbone: Backbone, *, frequent: int):
        """``ids``: (n,) int32 in the order of ``by_cluster``, the first ``frequent`` of them not in clusters."""
        super().__init__(ids[:frequent], backbone)
        self._cluster_ids = ids[frequent:].reshape(-1, CLUSTER)
        rows = backbone.output_rows(ids[frequent:])
        self._clusters = rows.reshape(-1, CLUSTER, rows.shape[-1])  # (clusters, CLUSTER, dim)
        self._centroids = self._clusters.mean(axis=1)  # (clusters, dim)
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
        nearest = min(NEAREST, len(self._clusters))
        near = mx.argpartition(-(self._centroids @ y), nearest - 1)[:nearest]
        others = (self._clusters[near] @ y + self._taken[near]).flatten()  # (NEAREST · CLUSTER,)
        ids = mx.concatenate([self.ids, self._cluster_ids[near].flatten()])
        return ids, mx.concatenate([self.logits(y), others])


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
