"""Train a student on cached features: batches, optimizer, checkpoints, a log to watch; goes on after a kill."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from tqdm import tqdm

from mtp_mlx.terminal import counted
from mtp_mlx.training.acceptance import Acceptance, describe
from mtp_mlx.training.features import Features, batches
from mtp_mlx.training.plot import plot
from mtp_mlx.training.recipe import Recipe
from mtp_mlx.training.texts import DataError

EVALUATIONS, SHORTEST = 20, 100  # of a run, and the steps between two at least


class Student(ABC):
    """What is trained: a module, its loss on a batch, and how well it drafts.

    ``name`` tells it from other students, its backbone included: a checkpoint belongs to one.
    """

    name: str
    recipe: Recipe
    module: nn.Module

    @abstractmethod
    def loss(self, group: Sequence[Features], progress: float) -> mx.array:
        """A scalar; ``progress``: how much of the training is over, 0 to 1."""

    @abstractmethod
    def evaluate(self, examples: Sequence[Features]) -> Acceptance:
        """How far its drafts would be accepted on examples."""


class Trainer:
    """Trains one student; ``run`` goes on from the last checkpoint of its folder.

    Of N processes (``mlx.launch -n N``) each takes every N-th batch, and their gradients are averaged.
    """

    def __init__(self, student: Student, examples: Sequence[Features], folder: Path):
        """``folder``: where checkpoint.safetensors and training.png go.

        Raises:
            DataError: nothing to train on.
        """
        if not examples:
            raise DataError("no examples to train on: generate more texts")
        self.student = student
        self.recipe = recipe = student.recipe
        self.examples = examples
        self.folder = folder
        self.step = 0
        self.world = mx.distributed.init()
        every = self._batches_of_every_epoch()
        size = self.world.size()
        if len(every) < size:
            raise DataError(
                f"{counted(len(every), 'batch', 'batches')} for {size} processes are too few: generate more texts"
            )
        self._plan = every[self.world.rank() :: size][: len(every) // size]
        peak, warm = recipe.learning_rate, max(1, int(recipe.warmup * len(self._plan)))
        down = max(1, len(self._plan) - warm)
        schedule = optim.join_schedules(
            [optim.linear_schedule(peak / warm, peak, warm), optim.cosine_decay(peak, down)], [warm]
        )
        self.optimizer = optim.AdamW(learning_rate=schedule, betas=[0.9, 0.95], weight_decay=0.0)

    def _batches_of_every_epoch(self) -> list[list[Features]]:
        plan = []
        for epoch in range(self.recipe.epochs):
            rng = np.random.default_rng([self.recipe.seed, epoch])
            order = rng.permutation(len(self.examples)).tolist()
            groups = list(batches(self.examples, anchors=self.recipe.anchors, order=order))
            plan.extend(groups[i] for i in rng.permutation(len(groups)))
        return plan

    def run(self, *, held_back: Sequence[Features], evaluate_every: int | None = None) -> list[dict[str, Any]]:
        """Train to the end of the recipe; return the log, one row an evaluation.

        ``evaluate_every``: steps between evaluations, each with a checkpoint; by default 20 in all, but for short runs.
        """
        module = self.student.module
        module.train()
        log = self._resume()
        gradient = nn.value_and_grad(module, self.student.loss)
        running: float | None = None
        first = self.world.rank() == 0
        total = len(self._plan)
        every = evaluate_every or max(SHORTEST, -(-total // EVALUATIONS))
        with tqdm(total=total, initial=self.step, desc="training", unit="step", disable=not first) as bar:
            while self.step < total:
                loss, gradients = gradient(self._plan[self.step], self.step / total)
                gradients = nn.average_gradients(gradients, group=self.world)
                gradients, _ = optim.clip_grad_norm(gradients, self.recipe.clip)
                self.optimizer.update(module, gradients)
                mx.eval(module.parameters(), self.optimizer.state, loss)
                running = loss.item() if running is None else 0.95 * running + 0.05 * loss.item()
                self.step += 1
                if first and (self.step % every == 0 or self.step == total):
                    scores = self.student.evaluate(held_back).to_json()
                    log.append({"step": self.step, "loss": running, **scores})
                    self._save(log)
                    bar.write(describe(log[-1]))
                bar.update()
                bar.set_postfix(loss=f"{running:.3f}", refresh=False)
        module.eval()
        return log

    def _save(self, log: list[dict[str, Any]]) -> None:
        """One file, put in place whole: a kill at any moment leaves the last good one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {f"module.{k}": v for k, v in tree_flatten(self.student.module.trainable_parameters())}
        arrays |= {f"optimizer.{k}": v for k, v in tree_flatten(self.optimizer.state)}
        about = {"step": str(self.step), "recipe": self._identity(), "log": json.dumps(log)}
        scratch = self.folder / "unfinished.safetensors"
        mx.save_safetensors(str(scratch), arrays, about)
        scratch.rename(self.folder / "checkpoint.safetensors")
        plot(log, self.folder / "training.png")

    def _resume(self) -> list[dict[str, Any]]:
        path = self.folder / "checkpoint.safetensors"
        if not path.exists():
            return []
        loaded: Any = mx.load(str(path), return_metadata=True)
        arrays, about = loaded
        if about["recipe"] != self._identity():
            raise DataError(f"{path} belongs to another recipe, backbone or data: give another --run, or remove it")
        parts = {"module": [], "optimizer": []}
        for name, array in arrays.items():
            part, _, rest = name.partition(".")
            parts[part].append((rest, array))
        self.student.module.load_weights(parts["module"], strict=False)
        self.optimizer.state = tree_unflatten(parts["optimizer"])
        self.step = int(about["step"])
        return json.loads(about["log"])

    def _identity(self) -> str:
        """What a checkpoint belongs to: recipe, processes, the kind of student, and every token it learns from.

        What is made of the trained weights is another thing, so another share takes no other training.
        """
        digest = hashlib.sha256(b"".join(f.ids.tobytes() for f in self.examples)).hexdigest()
        recipe = {name: value for name, value in asdict(self.recipe).items() if name != "share"}
        return json.dumps({**recipe, "processes": self.world.size(), "student": self.student.name, "data": digest})
