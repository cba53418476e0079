"""Prompt lookup: what followed the last few tokens when they last stood in the text (needs no training)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mtp_mlx.drafters.base import Drafter, Growing
from mtp_mlx.events import Draft


class LookupDrafter(Drafter):
    """Copies the continuation of the longest matching n-gram, the latest match first.

    Source: prompt lookup decoding (Saxena, 2023, github.com/apoorvumang/prompt-lookup-decoding).
    """

    name = "lookup"

    def __init__(self, *, longest: int = 3, shortest: int = 1):
        self.longest = longest
        self.shortest = shortest

    def draft(self, context: Growing, length: int) -> Draft:
        written = len(context.tokens) - context.prompt_length
        return Draft(tuple(self.match(context.tokens, written=written)[1][:length]))

    def match(self, tokens: Sequence[int], *, written: int) -> tuple[int, Sequence[int]]:
        """The length of the longest suffix that came before, and what followed its latest earlier occurrence.

        Only the last ``written`` tokens, those of the answer, are looked for: every prompt ends alike, and a worked
        example's answer follows the same words. (0, nothing) where there is none.
        """
        longest = min(self.longest, written)
        best, after = 0, len(tokens)
        for end in range(len(tokens) - 1, 0, -1):  # the latest first
            n = 0
            while n < min(longest, end) and tokens[end - 1 - n] == tokens[-1 - n]:
                n += 1
            if n > best:
                best, after = n, end
            if best == longest:
                break
        return (best, tokens[after:]) if best >= self.shortest else (0, [])


def measure(texts: Iterable[tuple[Sequence[int], int]], *, longest: int = 8) -> list[float]:
    """How often a copied token is right, for matches of 1 to ``longest`` tokens.

    Args:
        texts: ids of prompt and answer, and where the answer begins; every token of the answers is tried.

    Returns:
        For each length the share of right copies, counted as if one right and one wrong had come before
        (Laplace's rule), so that lengths that never came up are a guess of one half.
    """
    right, tried = [1] * longest, [2] * longest
    lookup = LookupDrafter(longest=longest)
    for ids, first in texts:
        for at in range(first, len(ids)):
            matched, copied = lookup.match(ids[:at], written=at - first)
            if matched:
                tried[matched - 1] += 1
                right[matched - 1] += copied[0] == ids[at]
    return [r / t for r, t in zip(right, tried, strict=True)]
