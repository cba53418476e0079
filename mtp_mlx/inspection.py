"""What stands behind a round, for people to look at: the likeliest tokens, ranks, margins, and where a head looked."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from mtp_mlx.events import Row

TOP = 3
SMALLEST = 0.005  # of smaller shares of attention there are many, and nobody sees them


def judge(logits: mx.array, drafted: Sequence[int]) -> tuple[Row, ...]:
    """The rows of a verify pass: logits (1 + drafted, vocab), of which row i judges ``drafted[i]``."""
    scores = np.array(logits.astype(mx.float32))
    logs = scores - np.array(mx.logsumexp(logits.astype(mx.float32), axis=-1, keepdims=True))
    rows = []
    for i, (score, log) in enumerate(zip(scores, logs, strict=True)):
        best = _best(score)
        rank = probability = None
        if i < len(drafted):
            token = drafted[i]
            before = score[:token] == score[token]  # of equals the first id comes first, as in argmax
            rank = 1 + int((score > score[token]).sum() + before.sum())
            probability = float(np.exp(log[token]))
        top = tuple((int(id), float(np.exp(log[id]))) for id in best)
        rows.append(Row(top, float(score[best[0]] - score[best[1]]), rank, probability))
    return tuple(rows)


def likeliest(logits: mx.array, *, ids: mx.array) -> tuple[tuple[int, float], ...]:
    """The few likeliest ids and their probabilities, best first: logits (n,) of ids (n,)."""
    scores = np.array(logits.astype(mx.float32))
    best = _best(scores)
    chances = np.exp(scores[best] - np.array(mx.logsumexp(logits.astype(mx.float32))))
    return tuple(zip(np.array(ids)[best].tolist(), chances.tolist(), strict=True))


def looked_at(shares: mx.array) -> tuple[tuple[int, float], ...]:
    """The positions that got a share worth showing, in order: shares (n,) that sum to 1."""
    values = np.array(shares.astype(mx.float32))
    return tuple((int(i), float(values[i])) for i in np.flatnonzero(values >= SMALLEST))


def _best(scores: np.ndarray) -> list[int]:
    """The indices of the largest scores (n,), the first of equals first."""
    worst = np.partition(scores, -TOP)[-TOP]
    among = np.flatnonzero(scores >= worst)
    return among[np.argsort(-scores[among], kind="stable")][:TOP].tolist()
