"""What every drafter is: it reads the context of one text, proposes ids, and is told the outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx
import numpy as np

from mtp_mlx.backbone import Backbone
from mtp_mlx.events import Draft, Guess, Round
from mtp_mlx.kv import KV


class Growing(Protocol):
    """A text as it grows, as far as what copies from it must know."""

    tokens: list[int]
    prompt_length: int


@dataclass
class Context:
    """One text as it grows; the decode loop writes it, drafters only read it.

    Attributes:
        tokens: prompt and committed ids. The last one, x_t, is not in the KV cache yet.
        kv: the backbone's cache; rows 0 to t − 1 are committed (t = ``kv.length``).
        hidden: (1, dim) the backbone's post-norm state at position t − 1.
        prompt_length: how many of ``tokens`` are the prompt.
    """

    tokens: list[int]
    kv: KV
    hidden: mx.array
    prompt_length: int


@dataclass(frozen=True)
class Proposal:
    """A draft in the making: arrays that the device may still be at work on.

    Attributes:
        ids: (n,) int32.
        probabilities: (n,) float32.
    """

    ids: mx.array
    probabilities: mx.array

    @classmethod
    def of(cls, ids: list[mx.array], probabilities: list[mx.array]) -> Proposal:
        """Of the steps' ids, (1,) each, and their probabilities, () each; of none, too."""
        return cls(mx.concatenate([mx.array([], mx.int32), *ids]), mx.array(probabilities))

    def wait(self) -> Draft:
        """The draft, once it is there."""
        mx.eval(self.ids, self.probabilities)
        return Draft(tuple(np.array(self.ids).tolist()), tuple(np.array(self.probabilities).tolist()))


class Drafter:
    """Proposes nothing: with it, speculative decode is plain decode."""

    name = "plain"

    def start(self, context: Context) -> None:
        """A new text begins: its prompt is prefilled, and its first token is the last one of ``context``."""

    def draft(self, context: Context, length: int) -> Draft:
        """At most ``length`` ids to follow ``context.tokens``."""
        return Draft()

    def propose(self, context: Context, length: int) -> Draft | Proposal:
        """As ``draft``, but where that pays (on a GPU) not waited for: the pass that verifies it is put together."""
        return self.draft(context, length)

    def look(self, context: Context, draft: Draft) -> tuple[Guess, ...]:
        """What stood behind a draft that was just made, token by token; called only for people to look at."""
        return tuple(Guess() for _ in draft.ids)

    def observe(self, context: Context, outcome: Round) -> None:
        """The verify pass has judged the draft; ``context`` is already moved on."""


class SteppingDrafter(Drafter):
    """Takes one step of a network for each token of a draft."""

    def __init__(self, backbone: Backbone):
        self.backbone = backbone

    def steps(self, context: Context, length: int) -> Proposal:
        """The steps of a draft, put together but not computed yet."""
        raise NotImplementedError

    def draft(self, context: Context, length: int) -> Draft:
        return self.steps(context, length).wait()

    def propose(self, context: Context, length: int) -> Draft | Proposal:
        if not self.backbone.compiled:
            return self.draft(context, length)
        proposal = self.steps(context, length)
        mx.async_eval(proposal.ids, proposal.probabilities)
        return proposal
