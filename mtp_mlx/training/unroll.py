"""What the MTP head learns: unrolled on its own state over cached features, as it drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mtp_mlx.backbone import Backbone
from mtp_mlx.drafters.vocabulary import by_cluster
from mtp_mlx.head import HeadConfig, MTPHead
from mtp_mlx.training.acceptance import Acceptance
from mtp_mlx.training.features import Features, batches
from mtp_mlx.training.trainer import Recipe, Student
from mtp_mlx.training.vocabulary import NOT_DRAFTED, candidates, cross_entropy, draft_vocabulary


@dataclass(frozen=True)
class Batch:
    """Examples padded together: B examples, A anchors, S keys.

    tokens (B, A + unroll) int32: row a is x_t of anchor a; hidden (B, A + unroll + 1, dim): row a is h_{t−1};
    best (B, A + unroll) int32: row a is what the backbone writes after x_t, −1 past the end;
    kv: for each head layer (B, kv_heads, S, head_dim) twice; offset (B,): the first anchor's position;
    mask (B, 1, A, S) bool: keys before the anchor's position;
    weight (B, A): 1 for anchors in the answer, less for those in the prompt.
    """

    tokens: mx.array
    hidden: mx.array
    best: mx.array
    kv: list[tuple[mx.array, mx.array]]
    offset: mx.array
    mask: mx.array
    weight: mx.array


def collate(group: Sequence[Features], *, unroll: int, prompt_weight: float = 1.0) -> Batch:
    """Pad a group of examples into one batch."""
    rows = max(f.anchors for f in group)
    keys = max(len(f.ids) for f in group)
    read = [(f.hidden, f.keys, f.values) for f in group]
    layers, heads, _, head_dim = read[0][1].shape
    tokens = np.zeros((len(group), rows + unroll), np.int32)
    best = np.full((len(group), rows + unroll), NOT_DRAFTED, np.int32)
    hidden = np.zeros((len(group), rows + unroll + 1, read[0][0].shape[1]), np.float32)
    kv = np.zeros((2, layers, len(group), heads, keys, head_dim), np.float32)
    weight = np.ones((len(group), rows), np.float32)
    for i, (f, (states, k, v)) in enumerate(zip(group, read, strict=True)):
        tokens[i, : f.anchors + 1] = f.ids[f.start :]
        best[i, : f.anchors] = f.best[:-1]  # what comes after the last token is nobody's business
        hidden[i, : f.anchors + 2] = states
        kv[0, :, i, :, : len(f.ids)] = k
        kv[1, :, i, :, : len(f.ids)] = v
        weight[i, : f.first - f.start] = prompt_weight
    start = np.array([f.start for f in group])
    return Batch(
        tokens=mx.array(tokens),
        hidden=mx.array(hidden),
        best=mx.array(best),
        kv=[(mx.array(kv[0, layer]), mx.array(kv[1, layer])) for layer in range(layers)],
        offset=mx.array(start.astype(np.int32)),
        mask=mx.arange(keys) < (mx.array(start)[:, None] + mx.arange(rows))[:, None, :, None],
        weight=mx.array(weight),
    )


def unrolled(head: MTPHead, embed, batch: Batch, *, unroll: int) -> list[tuple[mx.array, mx.array]]:
    """(y, next state) of each step, (B, A, dim) both: true tokens in, the head's own state from step to step."""
    rows = batch.mask.shape[2]
    state = batch.hidden[:, :rows]
    steps = []
    for step in range(unroll):
        embedding = embed(batch.tokens[:, step : step + rows])
        y, state = head(embedding, state, batch.kv, offset=batch.offset + step, mask=batch.mask)
        steps.append((y, state))
    return steps


def targets(batch: Batch, index: np.ndarray, *, unroll: int) -> list[mx.array]:
    """For each step the logit index of the backbone's own next token, (B, A); NOT_DRAFTED where it cannot be learnt."""
    rows = batch.mask.shape[2]
    placed = mx.where(batch.best == NOT_DRAFTED, NOT_DRAFTED, mx.array(index)[mx.maximum(batch.best, 0)])
    return [placed[:, step : step + rows] for step in range(unroll)]


class HeadStudent(Student):
    """An MTP head in training."""

    def __init__(
        self, backbone: Backbone, recipe: Recipe, examples: Sequence[Features] = (), *, start: MTPHead | None = None
    ):
        """A new head with the draft vocabulary of ``examples``, or ``start``, a trained one, as it is."""
        if start is None:
            ids = draft_vocabulary(examples, size=recipe.draft_vocab, always=backbone.eos)
            vocabulary, frequent = by_cluster(ids, backbone)
            mx.random.seed(recipe.seed)  # of layers that are not copies: the same in every process
            config = HeadConfig.for_backbone(backbone, kv_layers=recipe.kv_layers, frequent=frequent)
            start = MTPHead(config, vocabulary)
            start.copy_from(backbone, layers=recipe.without != "copies")
        start.set_dtype(mx.float32)
        self.backbone = backbone
        self.recipe = recipe
        self.head = self.module = start
        self.name = f"MTP head on {start.config.kv_layers} of {backbone.fingerprint}"

    def _collate(self, group: Sequence[Features]) -> Batch:
        return collate(group, unroll=self.recipe.unroll, prompt_weight=self.recipe.prompt_weight)

    def _unrolled(self, batch: Batch) -> list[tuple[mx.array, mx.array]]:
        """The steps over a batch, of which the head sees what the recipe leaves it."""
        return unrolled(self.head, self.backbone.embed, self._less(batch), unroll=self.recipe.unroll)

    def _less(self, batch: Batch) -> Batch:
        if self.recipe.without == "state":
            return replace(batch, hidden=mx.zeros_like(batch.hidden))
        if self.recipe.without == "kv":  # nothing but zeros to read
            return replace(batch, kv=[(keys, mx.zeros_like(values)) for keys, values in batch.kv])
        return batch

    def loss(self, group: Sequence[Features], progress: float) -> mx.array:
        """Of each step, cross-entropy on the backbone's tokens and probabilities, and SmoothL1 to the true state."""
        recipe = self.recipe
        batch = self._collate(group)
        index, output = candidates(self.backbone, self.head.draft_vocab, group)
        rows = batch.mask.shape[2]
        total = mx.array(0.0)
        teacher = batch.hidden[:, 1:] @ output.T  # (B, A + unroll, n): of step j, from row j on
        goals = targets(batch, index, unroll=recipe.unroll)
        for step, ((y, state), target) in enumerate(zip(self._unrolled(batch), goals, strict=True)):
            own = teacher[:, step : step + rows]
            loss = cross_entropy(y @ output.T, target, batch.weight, teacher=own, soft=recipe.soft)
            if recipe.regression and recipe.without != "state":
                real = (batch.best[:, step : step + rows] != NOT_DRAFTED) * batch.weight
                true = batch.hidden[:, step + 1 : step + 1 + rows]
                distance = nn.losses.smooth_l1_loss(state, true, reduction="none").mean(-1)
                far = (distance * real).sum() / mx.maximum(real.sum(), 1)
                loss = loss + recipe.regression * (1 - progress) * far
            total = total + recipe.decay**step * loss
        return total

    def evaluate(self, examples: Sequence[Features]) -> Acceptance:
        """Acceptance of drafts of ``unroll`` tokens."""
        unroll = self.recipe.unroll
        acceptance = Acceptance(unroll)
        answers = [f.answer_only() for f in examples]
        for group in batches(answers, anchors=1024, order=range(len(answers))):
            batch = self._collate(group)
            index, output = candidates(self.backbone, self.head.draft_vocab, group)
            pairs = zip(self._unrolled(batch), targets(batch, index, unroll=unroll), strict=True)
            hits = [mx.argmax(y @ output.T, axis=-1) == target for (y, _), target in pairs]
            table = np.array(mx.stack(hits, axis=-1))  # (B, A, unroll)
            for row, f in zip(table, group, strict=True):
                acceptance.add(f.task, row[: f.anchors], cut=int(f.ids[-1]) not in self.backbone.eos)
        return acceptance
