"""Drafts for several texts at once; what is drafted for one depends on no other and on no slot."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from copy import copy
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from mtp_mlx.drafters.auto import AutoDrafter
from mtp_mlx.drafters.base import Drafter
from mtp_mlx.drafters.lookup import LookupDrafter
from mtp_mlx.drafters.mtp import MTPDrafter
from mtp_mlx.drafters.vocabulary import DraftVocabulary
from mtp_mlx.events import Draft
from mtp_mlx.slots import Slots


@dataclass
class Text:
    """A text of a batch as it grows.

    Attributes:
        key: the caller's name for it.
        tokens: prompt and committed ids; the last one is not in the KV cache yet.
        left: how many tokens may still be committed.
        hidden: (dim,) the backbone's post-norm state at the token before the last one.
    """

    key: Hashable
    tokens: list[int]
    left: int
    hidden: mx.array | None = None
    prompt_length: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)


class Together:
    """Proposes nothing: with it, batched decode is batched plain decode."""

    def start(self, slot: int, text: Text) -> None:
        """A text joins, in a slot."""

    def draft(self, texts: Sequence[Text | None], kv: Slots, length: int) -> list[Draft]:
        """For the text in each slot, if there is one, at most ``length`` ids, and fewer than it may still commit."""
        return [Draft()] * len(texts)


class LookupTogether(Together):
    """Prompt lookup, text by text."""

    def __init__(self, lookup: LookupDrafter):
        self.lookup = lookup

    def draft(self, texts: Sequence[Text | None], kv: Slots, length: int) -> list[Draft]:
        return [
            Draft() if text is None else self.lookup.draft(text, min(length, text.left - 1))  # type: ignore[arg-type]
            for text in texts
        ]


class MTPTogether(Together):
    """One run of the head for all texts; with ``auto``, each text then copies on where that promises more."""

    def __init__(self, mtp: MTPDrafter, *, auto: AutoDrafter | None = None):
        self.head = mtp.head
        self.backbone = mtp.backbone
        self.auto = auto
        self.vocabulary = mtp.vocabulary
        self._own: dict[int, DraftVocabulary] = {}  # of the text in each slot; the common rows are shared

    def start(self, slot: int, text: Text) -> None:
        self._own[slot] = copy(self.vocabulary)
        self._own[slot].start(text.tokens)

    def draft(self, texts: Sequence[Text | None], kv: Slots, length: int) -> list[Draft]:
        """Every step has one row for each slot and reads the whole capacity under a mask: its shape never changes."""
        if length == 0:
            return [Draft()] * len(texts)
        own = [None if text is None else self._own[slot] for slot, text in enumerate(texts)]
        nothing = mx.zeros(self.head.config.hidden_size, self.backbone.dtype)
        hidden = [nothing if text is None or text.hidden is None else text.hidden for text in texts]
        state = mx.stack(hidden)[:, None]  # (slots, 1, dim)
        tokens = mx.array([0 if text is None else text.tokens[-1] for text in texts])  # (slots,)
        views = [kv.view(layer) for layer in self.head.config.kv_layers]
        seen = mx.maximum(kv.offset, 1)[:, None, None, None]  # an empty slot reads something, not nothing
        mask = mx.arange(kv.capacity) < seen  # (slots, 1, 1, capacity)
        ids: list[mx.array] = []
        probabilities: list[mx.array] = []
        for step in range(length):
            embedding = self.backbone.embed(tokens[:, None])
            y, state = self.head(embedding, state, views, offset=kv.offset + step, mask=mask)
            tokens, chances = self.vocabulary.best_of(y[:, 0], own)
            ids.append(tokens)
            probabilities.append(chances)
        mx.eval(ids, probabilities)
        drafted, chances = (
            [*zip(*(np.array(step).tolist() for step in steps), strict=True)] for steps in (ids, probabilities)
        )
        drafts = [Draft()] * len(texts)
        for slot, text in enumerate(texts):
            if text is not None:
                n = min(length, text.left - 1)
                draft = Draft(drafted[slot][:n], chances[slot][:n])
                drafts[slot] = draft if self.auto is None else self.auto.joined(text, draft, n)
        return drafts


def together(drafter: Drafter) -> Together:
    """The same drafter for several texts.

    Raises:
        ValueError: it drafts for one text at a time.
    """
    match drafter:
        case MTPDrafter():
            return MTPTogether(drafter)
        case AutoDrafter(head=MTPDrafter() as head):
            return MTPTogether(head, auto=drafter)
        case LookupDrafter():
            return LookupTogether(drafter)
        case Drafter(name="plain"):
            return Together()
    raise ValueError(f"the {drafter.name} drafter takes one text at a time: give --batch 1, or another --drafter")
