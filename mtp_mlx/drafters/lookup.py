"""Prompt lookup: what followed the last few tokens when they last stood in the text (needs no training)."""

from __future__ import annotations

from mtp_mlx.drafters.base import Context, Drafter
from mtp_mlx.events import Draft


class LookupDrafter(Drafter):
    """Copies the continuation of the longest matching n-gram, the latest match first.

    Source: prompt lookup decoding (Saxena, 2023, github.com/apoorvumang/prompt-lookup-decoding).
    """

    name = "lookup"

    def __init__(self, *, longest: int = 3, shortest: int = 1):
        self.longest = longest
        self.shortest = shortest

    def draft(self, context: Context, length: int) -> Draft:
        return Draft(tuple(self.continuation(context.tokens)[:length]))

    def continuation(self, tokens: list[int]) -> list[int]:
        """What followed the latest earlier occurrence of the longest suffix; empty where there is none."""
        for n in range(min(self.longest, len(tokens) - 1), self.shortest - 1, -1):
            suffix = tokens[-n:]
            for start in range(len(tokens) - n - 1, -1, -1):
                if tokens[start : start + n] == suffix:
                    return tokens[start + n :]
        return []
