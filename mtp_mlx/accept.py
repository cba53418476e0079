"""Which drafted tokens the backbone accepts: a pure function of ids, the decode loop's only judge."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def greedy(drafted: Sequence[int], choices: Sequence[int], *, eos: Collection[int]) -> tuple[int, int | None]:
    """Accept draft tokens as long as each is the backbone's own choice.

    Args:
        drafted: (k,) the draft.
        choices: (k + 1,) the backbone's greedy token after the last committed token and after each draft token.
        eos: end-of-text ids; a *verified* one is the last token of the text, whatever was drafted behind it.

    Returns:
        How many draft tokens are accepted, and the backbone's token after them (None behind end-of-text).
    """
    for i, token in enumerate(drafted):
        if token != choices[i]:
            return i, choices[i]
        if token in eos:
            return i + 1, None
    return len(drafted), choices[len(drafted)]
