"""Every knob of a training, each an option of ``mtp-mlx train``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

WITHOUT = ("nothing", "state", "kv", "copies")


def _knob(default: Any, help: str, choices: tuple[str, ...] | None = None, shown: str | None = None) -> Any:
    return field(default=default, metadata={"help": help, "choices": choices, "shown": shown or default})


@dataclass(frozen=True)
class Recipe:
    """How to train; where the defaults come from is in EAGLE-3 (2503.01840), HASS (2408.15766), FastMTP (2509.18362)
    and the table of runs in the shipped head's model card. Averages of weights before and after further training:
    Wortsman et al. (2109.01903)."""

    kv_layers: tuple[int, ...] = _knob(
        (), "backbone layers that a head reads, one for each of its own", shown="two thirds up, and the last"
    )
    standalone_layers: tuple[int, ...] = _knob(
        (), "backbone layers that a standalone drafter starts from", shown="the first and the last"
    )
    draft_vocab: int = _knob(8192, "ids that a draft may hold besides the prompt's own")
    epochs: int = _knob(5, "passes over the texts")
    unroll: int = _knob(5, "tokens that a draft is trained for")
    anchors: int = _knob(256, "positions in a batch (padded), of each process")
    learning_rate: float = _knob(8e-4, "the peak of the schedule")
    warmup: float = _knob(0.05, "share of the steps that lead up to the peak")
    decay: float = _knob(0.8, "the loss of step j weighs DECAY ** j")
    soft: float = _knob(0.5, "share of the loss taken against the backbone's probabilities, not its choice alone")
    prompt_weight: float = _knob(0.0, "weight of positions in the prompts' texts; 0 leaves them out")
    regression: float = _knob(0.2, "weight of SmoothL1 between own and true state, fading to 0")
    clip: float = _knob(1.0, "the largest norm of a gradient")
    share: float = _knob(1.0, "of --from-head: the new weights' share of what is written, the old ones' is the rest")
    without: str = _knob("nothing", "what a head does without, to see what that is worth", WITHOUT)
    seed: int = _knob(0, "of the order of the texts")

    def __post_init__(self) -> None:
        for name in ("draft_vocab", "epochs", "unroll", "anchors"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give at least 1")
        if not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share}: give more than 0, and at most 1")
        for name in ("learning_rate", "decay", "clip"):
            if not 0 < getattr(self, name) < inf:
                raise ValueError(f"{name} is {getattr(self, name)}: give more than 0")
        for name in ("prompt_weight", "regression"):
            if not 0 <= getattr(self, name) < inf:
                raise ValueError(f"{name} is {getattr(self, name)}: give at least 0")
        for name in ("warmup", "soft"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give a share, 0 to 1")
        if self.without not in WITHOUT:
            raise ValueError(f"a head cannot do without {self.without!r}: give one of {', '.join(WITHOUT)}")

    def on(self, depth: int) -> Recipe:
        """With layers of a backbone that has ``depth`` of them, where none were chosen.

        A head reads the last one and one two thirds up: of SmolLM2-135M's 30, no two did better than 20 and 29.
        """
        last = depth - 1
        return replace(
            self,
            kv_layers=self.kv_layers or (2 * depth // 3, last),
            standalone_layers=self.standalone_layers or (0, last),
        )
