"""Joined drafting: the head's draft, the text's own continuation, or the one and then the other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from mtp_mlx.drafters.base import Context, Drafter, Growing
from mtp_mlx.drafters.lookup import LookupDrafter
from mtp_mlx.events import Draft, Guess


class AutoDrafter(Drafter):
    """After the first j of the head's tokens, copies on; j is the one from which most tokens can be expected.

    What a draft can be expected to bring is the sum over its tokens of the chance that all up to it are accepted.
    A head's token has the head's own probability. A copied token has the measured chance of its match's length,
    which grows by one with each token copied; the head's tokens are part of the match, so a copy that the head
    agrees with gains by it. Where the copy leaves the head's draft, its token has its chance of what the head's own
    leaves: a head that is sure of another token is seldom wrong.
    """

    name = "auto"

    def __init__(self, head: Drafter, copy_chance: Sequence[float]):
        """``copy_chance[n - 1]``: how often a copy after a match of n tokens was right (``lookup.measure``)."""
        self.head = head
        self.copy_chance = copy_chance
        self.lookup = LookupDrafter(longest=len(copy_chance))

    def start(self, context: Context) -> None:
        self.head.start(context)

    def draft(self, context: Context, length: int) -> Draft:
        return self.joined(context, self.head.draft(context, length), length)

    def joined(self, context: Growing, own: Draft, length: int) -> Draft:
        """The head's draft, or the best one that copies on after some of it."""
        drafts = [own, *(self.spliced(context, own, j, length) for j in range(length))]
        return max(drafts, key=expected)  # the head's own where two are equal

    def look(self, context: Context, draft: Draft) -> tuple[Guess, ...]:
        """What the head says, of copied tokens too."""
        return self.head.look(context, draft)

    def spliced(self, context: Growing, own: Draft, j: int, length: int) -> Draft:
        """The first j tokens of ``own``, then what followed them and the text before them when they came last."""
        tokens = [*context.tokens, *own.ids[:j]]
        matched, copied = self.lookup.match(tokens, written=len(tokens) - context.prompt_length)
        copied = copied[: length - j]
        if not copied or copied[0] == own.ids[j]:  # that is in the splice after one more of the head's tokens
            return Draft()
        chances = [self.copy_chance[min(matched + i, len(self.copy_chance)) - 1] for i in range(len(copied))]
        chances[0] *= 1 - own.probabilities[j]
        return Draft((*own.ids[:j], *copied), (*own.probabilities[:j], *chances))


def expected(draft: Draft) -> float:
    """Tokens that can be expected to be accepted: the sum of the chances that all up to each one are."""
    return sum(accumulate(draft.probabilities, mul))
