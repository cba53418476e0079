"""What a terminal shows: a round of decode as a line, and numbers with their nouns."""

from __future__ import annotations

import os
import sys
from typing import Any

# Each state of a token as the page marks it: a sign for everyone, a colour (ANSI) on a terminal.
STATES = {
    "accepted": ("✓", "32"),
    "rejected": ("✗", "9;31"),
    "unread": ("–", "2"),
    "correction": ("↻", "33"),
    "bonus": ("+", "36"),
    "plain": ("", "0"),
    "first": ("▸", "0"),
}


def counted(number: int, one: str, many: str = "") -> str:
    """A number with its noun: ``1 pass``, ``2 passes``; ``many`` is the noun and an s where it is left out."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def in_colour() -> bool:
    """Whether standard error shows colours: a terminal, and NO_COLOR (no-color.org) is not set."""
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")


def legend() -> str:
    """What the marks mean."""
    return ", ".join(f"{sign} {state}" for state, (sign, _) in STATES.items() if sign)


def line(round: dict[str, Any], *, colour: bool) -> str:
    """One round: each drafted token with the mark of its state, then the backbone's own."""
    accepted = round["accepted"]
    first_after = "unread" if round["kind"] == "end" else "rejected"
    states = ["accepted"] * accepted + [first_after] + ["unread"] * len(round["drafted"])
    tokens = [(token["text"], state) for token, state in zip(round["drafted"], states, strict=False)]
    if round["token"] is not None:
        tokens.append((round["token"]["text"], round["kind"]))
    marked = ((f"{text!r}{STATES[state][0]}", STATES[state][1]) for text, state in tokens)
    painted = (f"\x1b[{code}m{text}\x1b[0m" if colour else text for text, code in marked)
    told = f"{accepted}/{len(round['drafted'])} {' '.join(painted)}"
    if round["kind"] != "correction":
        return told
    row = round["rows"][accepted]
    return f"{told}   probability {row['top'][0]['probability']:.2f}; {tokens[accepted][0]!r} ranked {row['rank']}"
