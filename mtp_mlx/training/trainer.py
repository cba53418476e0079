"""Train the head: unroll it on its own state over cached features; only the head's weights change."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from tqdm import tqdm

from mtp_mlx.backbone import Backbone
from mtp_mlx.head import HeadConfig, MTPHead
from mtp_mlx.training.features import Features, batches
from mtp_mlx.training.texts import DataError

NOT_DRAFTED = -1  # a target that is padding, or in neither the draft vocabulary nor the prompts


@dataclass(frozen=True)
class Recipe:
    """How to train; the defaults and their sources are in DESIGN's C4 (EAGLE-3, HASS, FastMTP).

    Attributes:
        anchors: rows of a batch (padded); each is unrolled ``unroll`` steps.
        decay: step j weighs ``decay ** j``.
        regression: weight of SmoothL1 between the recurrent and the true state, fading to 0 over the run.
    """

    kv_layers: tuple[int, ...] = (20, 29)
    draft_vocab: int = 6144
    epochs: int = 5
    unroll: int = 5
    anchors: int = 512
    learning_rate: float = 8e-4
    warmup: float = 0.05
    decay: float = 0.8
    regression: float = 0.2
    clip: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Batch:
    """Examples padded together: B examples, A anchors, S keys.

    tokens (B, A + unroll) int32: row a is x_t of anchor a; hidden (B, A + unroll, dim): row a is h_{t−1};
    kv: for each head layer (B, kv_heads, S, head_dim) twice; offset (B,): the first anchor's position;
    mask (B, 1, A, S) bool: keys before the anchor's position; valid (B, A + unroll) bool: real tokens.
    """

    tokens: mx.array
    hidden: mx.array
    kv: list[tuple[mx.array, mx.array]]
    offset: mx.array
    mask: mx.array
    valid: mx.array


def collate(group: Sequence[Features], *, unroll: int) -> Batch:
    """Pad a group of examples into one batch."""
    rows = max(f.anchors for f in group)
    keys = max(len(f.ids) for f in group)
    dim = group[0].hidden.shape[1]
    layers, heads, _, head_dim = group[0].keys.shape
    tokens = np.zeros((len(group), rows + unroll), np.int32)
    valid = np.zeros((len(group), rows + unroll), bool)
    hidden = np.zeros((len(group), rows + unroll, dim), np.float32)
    kv = np.zeros((2, layers, len(group), heads, keys, head_dim), np.float32)
    for i, f in enumerate(group):
        text = f.ids[f.first :]  # anchors + 1 tokens
        n = min(len(text), rows + unroll)
        tokens[i, :n], valid[i, :n] = text[:n], True
        hidden[i, :n] = f.hidden[:n]
        kv[0, :, i, :, : len(f.ids)] = f.keys
        kv[1, :, i, :, : len(f.ids)] = f.values
    first = np.array([f.first for f in group])
    return Batch(
        tokens=mx.array(tokens),
        hidden=mx.array(hidden),
        kv=[(mx.array(kv[0, layer]), mx.array(kv[1, layer])) for layer in range(layers)],
        offset=mx.array(first.astype(np.int32)),
        mask=mx.arange(keys) < (mx.array(first)[:, None] + mx.arange(rows))[:, None, :, None],
        valid=mx.array(valid),
    )


def candidates(backbone: Backbone, head: MTPHead, group: Sequence[Features]) -> tuple[np.ndarray, mx.array]:
    """The ids that a draft may hold for this batch, and where each is in the logits.

    The draft vocabulary and the prompts' own tokens, as the drafter gathers them for one prompt.

    Returns:
        index (vocab,) int32 from id to logit (NOT_DRAFTED where there is none), and the output rows (n, dim).
    """
    known = np.array(head.draft_vocab)
    own = np.setdiff1d(np.concatenate([f.ids[: f.first + 1] for f in group]), known)
    ids = np.concatenate([known, own])
    index = np.full(backbone.args.vocab_size, NOT_DRAFTED, np.int32)
    index[ids] = np.arange(len(ids))
    return index, backbone.output_rows(mx.array(ids))


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
    """For each step the logit index of the true next token, (B, A); NOT_DRAFTED where there is none to learn."""
    rows = batch.mask.shape[2]
    placed = mx.where(batch.valid, mx.array(index)[batch.tokens], NOT_DRAFTED)
    return [placed[:, step + 1 : step + 1 + rows] for step in range(unroll)]


class Trainer:
    """Trains one head; ``run`` goes on from the last checkpoint of its folder.

    Args:
        start: a trained head to go on from, its draft vocabulary and layers included; by default a new one.
    """

    def __init__(
        self, backbone: Backbone, recipe: Recipe, train: list[Features], folder: Path, *, start: MTPHead | None = None
    ):
        if not train:
            raise DataError("no examples to train on: generate more texts")
        self.backbone = backbone
        self.recipe = recipe
        self.train = train
        self.folder = folder
        self.head = start or self._new_head()
        self.head.set_dtype(mx.float32)
        self.head.train()
        self._plan = self._batches_of_every_epoch()
        peak, warm = recipe.learning_rate, max(1, int(recipe.warmup * len(self._plan)))
        schedule = optim.join_schedules(
            [optim.linear_schedule(peak / warm, peak, warm), optim.cosine_decay(peak, len(self._plan) - warm)], [warm]
        )
        self.optimizer = optim.AdamW(learning_rate=schedule, betas=[0.9, 0.95], weight_decay=0.0)
        self.step = 0

    def _new_head(self) -> MTPHead:
        config = HeadConfig.for_backbone(self.backbone, kv_layers=self.recipe.kv_layers)
        vocabulary = draft_vocabulary(self.train, size=self.recipe.draft_vocab, always=self.backbone.eos)
        head = MTPHead(config, vocabulary)
        head.copy_from(self.backbone)
        return head

    def _batches_of_every_epoch(self) -> list[list[Features]]:
        plan = []
        for epoch in range(self.recipe.epochs):
            rng = np.random.default_rng([self.recipe.seed, epoch])
            order = rng.permutation(len(self.train)).tolist()
            groups = list(batches(self.train, anchors=self.recipe.anchors, order=order))
            plan.extend(groups[i] for i in rng.permutation(len(groups)))
        return plan

    def run(self, *, held_back: list[Features], evaluate_every: int = 100) -> list[dict]:
        """Train to the end of the recipe; return the log, one row an evaluation."""
        log = self._resume()
        gradient = nn.value_and_grad(self.head, self._loss)
        running: float | None = None
        with tqdm(total=len(self._plan), initial=self.step, desc="training", unit="step") as bar:
            while self.step < len(self._plan):
                group = self._plan[self.step]
                loss, gradients = gradient(group, self.step / len(self._plan))
                gradients, _ = optim.clip_grad_norm(gradients, self.recipe.clip)
                self.optimizer.update(self.head, gradients)
                mx.eval(self.head.parameters(), self.optimizer.state, loss)
                running = loss.item() if running is None else 0.95 * running + 0.05 * loss.item()
                self.step += 1
                if self.step % evaluate_every == 0 or self.step == len(self._plan):
                    scores = evaluate(self.backbone, self.head, held_back, unroll=self.recipe.unroll)
                    log.append({"step": self.step, "loss": running, **scores})
                    self._save(log)
                    bar.write(describe(log[-1]))
                bar.update()
                bar.set_postfix(loss=f"{running:.3f}", refresh=False)
        return log

    def _loss(self, group: list[Features], progress: float) -> mx.array:
        recipe = self.recipe
        batch = collate(group, unroll=recipe.unroll)
        index, output = candidates(self.backbone, self.head, group)
        rows = batch.mask.shape[2]
        total = mx.array(0.0)
        steps = unrolled(self.head, self.backbone.embed, batch, unroll=recipe.unroll)
        for step, ((y, state), target) in enumerate(
            zip(steps, targets(batch, index, unroll=recipe.unroll), strict=True)
        ):
            learnt = target != NOT_DRAFTED
            count = mx.maximum(learnt.sum(), 1)
            entropy = nn.losses.cross_entropy(y @ output.T, mx.maximum(target, 0))
            loss = mx.where(learnt, entropy, 0).sum() / count
            if recipe.regression and step + 1 < rows + recipe.unroll:
                true = batch.hidden[:, step + 1 : step + 1 + rows]
                real = batch.valid[:, step + 1 : step + 1 + rows]
                distance = nn.losses.smooth_l1_loss(state, true, reduction="none").mean(-1)
                far = mx.where(real, distance, 0).sum() / mx.maximum(real.sum(), 1)
                loss = loss + recipe.regression * (1 - progress) * far
            total = total + recipe.decay**step * loss
        return total

    def _save(self, log: list[dict]) -> None:
        """One file, put in place whole: a kill at any moment leaves the last good one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {f"head.{k}": v for k, v in tree_flatten(self.head.trainable_parameters())}
        arrays |= {f"optimizer.{k}": v for k, v in tree_flatten(self.optimizer.state)}
        about = {"step": str(self.step), "recipe": self._identity(), "log": json.dumps(log)}
        scratch = self.folder / "unfinished.safetensors"
        mx.save_safetensors(str(scratch), arrays, about)
        scratch.rename(self.folder / "checkpoint.safetensors")

    def _resume(self) -> list[dict]:
        path = self.folder / "checkpoint.safetensors"
        if not path.exists():
            return []
        loaded: Any = mx.load(str(path), return_metadata=True)
        arrays, about = loaded
        if about["recipe"] != self._identity():
            raise DataError(f"{path} belongs to another recipe, backbone or data: give another --run, or remove it")
        parts = {"head": [], "optimizer": []}
        for name, array in arrays.items():
            part, _, rest = name.partition(".")
            parts[part].append((rest, array))
        self.head.load_weights(parts["head"], strict=False)
        self.optimizer.state = tree_unflatten(parts["optimizer"])
        self.step = int(about["step"])
        return json.loads(about["log"])

    def _identity(self) -> str:
        return json.dumps({**asdict(self.recipe), "backbone": self.head.config.backbone, "examples": len(self.train)})


def draft_vocabulary(examples: Iterable[Features], *, size: int, always: Iterable[int]) -> mx.array:
    """The ``size`` most frequent ids of the backbone's answers, then of the prompts, and ``always``; sorted."""
    counts: Counter[int] = Counter()
    for f in examples:
        counts.update({i: 1.0 for i in set(f.ids[: f.first].tolist())})
        for i in f.ids[f.first + 1 :].tolist():
            counts[i] += 1000
    chosen = {id for id, _ in counts.most_common(size)} | set(always)
    return mx.array(sorted(chosen), mx.int32)


def evaluate(backbone: Backbone, head: MTPHead, examples: list[Features], *, unroll: int) -> dict:
    """Acceptance on examples, measured from every position of the answers, with the head drafting greedily.

    Until the first miss the true tokens are the drafted ones, so teacher forcing gives the exact count.

    Returns:
        accepted: mean accepted tokens of a draft of ``unroll``; per_position: the share of drafts accepted that far;
        conditional: the share accepted of those accepted one position before; by_task: ``accepted`` of each task.
    """
    reached: dict[str, np.ndarray] = {}
    drafts: Counter[str] = Counter()
    for group in batches(examples, anchors=1024, order=range(len(examples))):
        batch = collate(group, unroll=unroll)
        index, output = candidates(backbone, head, group)
        rows = batch.mask.shape[2]
        good = mx.ones((len(group), rows), mx.bool_)
        hits = []
        steps = unrolled(head, backbone.embed, batch, unroll=unroll)
        for (y, _), target in zip(steps, targets(batch, index, unroll=unroll), strict=True):
            good = good & (mx.argmax(y @ output.T, axis=-1) == target)
            hits.append(good)
        real = np.array(batch.valid[:, 1 : rows + 1])
        counts = np.array(mx.stack(hits, axis=-1)) * real[..., None]  # (B, A, unroll)
        for i, f in enumerate(group):
            drafts[f.task] += int(real[i].sum())
            reached[f.task] = reached.get(f.task, 0) + counts[i].sum(axis=0)
    by_task = {task: (reached[task] / max(drafts[task], 1)).tolist() for task in sorted(reached)}
    per_position = np.mean([shares for shares in by_task.values()], axis=0) if by_task else np.zeros(unroll)
    before = np.concatenate([[1.0], per_position[:-1]])
    return {
        "accepted": float(per_position.sum()),
        "per_position": per_position.tolist(),
        "conditional": (per_position / np.maximum(before, 1e-9)).tolist(),
        "by_task": {task: math.fsum(shares) for task, shares in by_task.items()},
    }


def describe(row: dict) -> str:
    """A log row as a line to read."""
    chances = " ".join(f"{share:.2f}" for share in row["conditional"])
    tasks = ", ".join(f"{task} {accepted:.2f}" for task, accepted in row["by_task"].items())
    return f"step {row['step']}: loss {row['loss']:.3f}, accepted {row['accepted']:.2f} ({tasks}), positions {chances}"
