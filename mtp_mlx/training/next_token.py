"""What the standalone drafter learns: the next token of the backbone's answers, from the whole text."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from mtp_mlx.backbone import Backbone
from mtp_mlx.drafters.vocabulary import by_cluster
from mtp_mlx.standalone import Standalone, StandaloneConfig
from mtp_mlx.training.acceptance import Acceptance
from mtp_mlx.training.features import Features, batches
from mtp_mlx.training.trainer import Recipe, Student
from mtp_mlx.training.vocabulary import NOT_DRAFTED, candidates, cross_entropy, draft_vocabulary


class StandaloneStudent(Student):
    """A standalone drafter in training; it reads ids only."""

    def __init__(
        self, backbone: Backbone, recipe: Recipe, examples: Sequence[Features] = (), *, start: Standalone | None = None
    ):
        """A new drafter with the draft vocabulary of ``examples``, or ``start``, a trained one, as it is."""
        if start is None:
            ids = draft_vocabulary(examples, size=recipe.draft_vocab, always=backbone.eos)
            vocabulary, frequent = by_cluster(ids, backbone)
            layers = recipe.standalone_layers
            config = StandaloneConfig(layers, backbone.fingerprint, backbone.vocab_hash, frequent)
            start = Standalone(backbone, config, vocabulary)
        start.set_dtype(mx.float32)
        self.backbone = backbone
        self.recipe = recipe
        self.drafter = self.module = start
        self.name = f"standalone drafter of {start.config.layers} of {backbone.fingerprint}"

    def _states(self, group: Sequence[Features]) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        """At the anchors: states (B, A, dim), the output rows (n, dim) that make logits of them, the logit index of
        what the backbone writes (B, A), and weights (B, A)."""
        rows, length = max(f.anchors for f in group), max(len(f.ids) for f in group)
        ids = np.zeros((len(group), length), np.int32)
        at = np.zeros((len(group), rows), np.int32)
        index, output = candidates(self.backbone, self.drafter.draft_vocab, group)
        target = np.full((len(group), rows), NOT_DRAFTED, np.int32)
        weight = np.ones((len(group), rows), np.float32)
        for i, f in enumerate(group):
            ids[i, : len(f.ids)] = f.ids
            at[i, : f.anchors] = np.arange(f.start, f.start + f.anchors)
            target[i, : f.anchors] = index[f.best[:-1]]
            weight[i, : f.first - f.start] = self.recipe.prompt_weight
        states = self.drafter.model.model(mx.array(ids))  # (B, length, dim)
        states = mx.take_along_axis(states, mx.array(at)[..., None], axis=1)  # (B, A, dim)
        return states, output, mx.array(target), mx.array(weight)

    def loss(self, group: Sequence[Features], progress: float) -> mx.array:
        """Cross-entropy on the backbone's next token and its probabilities."""
        states, output, target, weight = self._states(group)
        true = np.zeros(states.shape, np.float32)  # the backbone's states there
        for i, f in enumerate(group):
            true[i, : f.anchors] = f.hidden[1:-1]
        teacher = mx.array(true) @ output.T
        return cross_entropy(states @ output.T, target, weight, teacher=teacher, soft=self.recipe.soft)

    def evaluate(self, examples: Sequence[Features]) -> Acceptance:
        """Acceptance of drafts of ``unroll`` tokens: a draft goes on right as long as each next token is right."""
        unroll = self.recipe.unroll
        acceptance = Acceptance(unroll)
        answers = [f.answer_only() for f in examples]
        for group in batches(answers, anchors=1024, order=range(len(answers))):
            states, output, target, _ = self._states(group)
            right = np.array(mx.argmax(states @ output.T, axis=-1) == target)  # (B, A)
            for row, f in zip(right, group, strict=True):
                padded = np.concatenate([row[: f.anchors], np.zeros(unroll - 1, bool)])
                hits = np.lib.stride_tricks.sliding_window_view(padded, unroll)
                acceptance.add(f.task, hits, cut=int(f.ids[-1]) not in self.backbone.eos)
        return acceptance
