"""Which ids a draft may hold, in training: the draft vocabulary and the prompts' own tokens, as when drafting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import mlx.core as mx
import numpy as np

from mtp_mlx.backbone import Backbone
from mtp_mlx.training.features import Features

NOT_DRAFTED = -1  # a target that is padding, or in neither the draft vocabulary nor the prompts


def draft_vocabulary(examples: Iterable[Features], *, size: int, always: Iterable[int]) -> mx.array:
    """``always``, then the ``size`` most frequent ids of the backbone's answers, then of the prompts."""
    counts: Counter[int] = Counter()
    for f in examples:
        counts.update({i: 1.0 for i in set(f.ids[: f.first].tolist())})
        for i in f.ids[f.first + 1 :].tolist():
            counts[i] += 1000
    chosen = dict.fromkeys([*sorted(always), *(id for id, _ in counts.most_common(size))])  # each once
    return mx.array(list(chosen), mx.int32)


def candidates(backbone: Backbone, draft_vocab: mx.array, group: Sequence[Features]) -> tuple[np.ndarray, mx.array]:
    """The ids that a draft may hold for a batch, and where each is in the logits.

    Returns:
        index (vocab,) int32 from id to logit (NOT_DRAFTED where there is none), and the output rows (n, dim).
    """
    known = np.array(draft_vocab)
    own = np.setdiff1d(np.concatenate([f.ids[: f.first + 1] for f in group]), known)
    ids = np.concatenate([known, own])
    index = np.full(backbone.args.vocab_size, NOT_DRAFTED, np.int32)
    index[ids] = np.arange(len(ids))
    return index, backbone.output_rows(mx.array(ids))


def cross_entropy(
    logits: mx.array, target: mx.array, weight: mx.array, *, teacher: mx.array | None = None, soft: float = 0.0
) -> mx.array:
    """Weighted mean over the targets that can be learnt: logits (..., n), target indices (...), weight (...).

    ``teacher``: (..., n) the backbone's own logits, against whose probabilities ``soft`` of it is taken (which is the
    Kullback-Leibler divergence, but for a constant; Hinton et al., arXiv:1503.02531).
    """
    weight = mx.where(target == NOT_DRAFTED, 0, weight)
    right = mx.take_along_axis(logits, mx.maximum(target, 0)[..., None], axis=-1)[..., 0]
    if teacher is not None and soft:
        right = (1 - soft) * right + soft * (mx.softmax(teacher, axis=-1) * logits).sum(axis=-1)
    return ((mx.logsumexp(logits, axis=-1) - right) * weight).sum() / mx.maximum(weight.sum(), 1)
