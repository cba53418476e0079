"""Correct sentences to the way people type them: misspellings, texting, lost articles, commas and capitals."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

KEYBOARD = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
CONFUSED = [
    *(("their", "there"), ("there", "their"), ("they're", "their"), ("your", "you're"), ("you're", "your")),
    *(("its", "it's"), ("it's", "its"), ("then", "than"), ("than", "then"), ("too", "to"), ("to", "too")),
    *(("is", "are"), ("are", "is"), ("was", "were"), ("were", "was"), ("has", "have"), ("have", "has")),
    *(("does", "do"), ("do", "does"), ("doesn't", "don't"), ("don't", "doesn't"), ("isn't", "aren't")),
    *(("in", "on"), ("on", "in"), ("at", "in"), ("for", "to"), ("of", "from"), ("with", "by")),
    *(("went", "goed"), ("bought", "buyed"), ("saw", "seen"), ("took", "taked"), ("knew", "knowed"), ("made", "make")),
    *(("came", "come"), ("gave", "give"), ("got", "get"), ("said", "say"), ("told", "telled"), ("felt", "feeled")),
    *(("much", "many"), ("many", "much"), ("good", "well"), ("better", "more better"), ("me", "I"), ("he", "him")),
    *(("who", "which"), ("children", "childs"), ("people", "peoples"), ("women", "womans"), ("affect", "effect")),
    *(("lose", "loose"), ("quiet", "quite"), ("where", "were"), ("can't", "can not"), ("should have", "should of")),
]
TEXTING = [
    *(("you", "u"), ("are", "r"), ("your", "ur"), ("please", "pls"), ("thanks", "thx"), ("to", "2"), ("for", "4")),
    *(("before", "b4"), ("tomorrow", "tmrw"), ("people", "ppl"), ("because", "cuz"), ("and", "n"), ("okay", "ok")),
    *(("what", "wat"), ("with", "w/"), ("message", "msg"), ("tonight", "tonite"), ("going to", "gonna")),
    *(("want to", "wanna"), ("got to", "gotta"), ("minutes", "mins"), ("see", "c"), ("about", "abt"), ("know", "kno")),
]
ARTICLE = re.compile(r"\b(a|an|the) ", re.IGNORECASE)


def read_misspellings(folder: Path, *, frequency: int = 5) -> dict[str, list[str]]:
    """Correction → misspellings, of every .tsv of a folder with the columns misspelling, correction, correction_freq.

    Corrections that come up less than ``frequency`` times are left out.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(folder.glob("*.tsv")):
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
                wrong, right, times = row.get("misspelling"), row.get("correction"), row.get("correction_freq") or ""
                if wrong and right and times.isdecimal() and int(times) >= frequency:
                    found[right.lower()].append(wrong)
    return dict(found)


def mistype(text: str, random: Random, misspellings: Mapping[str, Sequence[str]]) -> str:
    """``text`` as someone in a hurry, a learner or a texter would send it; sometimes without any mistake."""
    if random.random() < 0.1:
        return text
    rate = random.choice((0.04, 0.08, 0.15, 0.25))
    words = [_word(word, random, rate, misspellings) for word in text.split(" ")]
    typed = " ".join(word for word in words if word)
    if random.random() < 0.25:
        typed = _swap(typed, TEXTING, random, rate=0.6)
    typed = _swap(typed, CONFUSED, random, rate=rate)
    if random.random() < 0.4:
        typed = ARTICLE.sub(lambda found: "" if random.random() < 0.5 else found[0], typed)
    if random.random() < 0.4:
        typed = re.sub(r"['’]", lambda found: "" if random.random() < 0.8 else found[0], typed)
    if random.random() < 0.4:
        typed = re.sub(r"[,;]", lambda found: "" if random.random() < 0.8 else found[0], typed)
    if random.random() < 0.5:
        typed = typed.rstrip(".!?")
    if random.random() < 0.15:
        typed = re.sub(r"[.!?] ", " ", typed)
    if random.random() < 0.45:
        typed = typed.lower()
    elif random.random() < 0.2:
        typed = re.sub(r"\bI\b", "i", typed)
    return typed.strip() or text


def _word(word: str, random: Random, rate: float, misspellings: Mapping[str, Sequence[str]]) -> str:
    """A word as typed: misspelt, mistyped, doubled, left out, joined to the next, or as it was."""
    if random.random() > rate:
        return word
    bare = word.strip(".,;:!?\"'()")
    known = misspellings.get(bare.lower())
    if known and random.random() < 0.7:
        wrong = random.choice(known)
        return word.replace(bare, wrong.capitalize() if bare[:1].isupper() else wrong)
    return random.choice((_neighbour, _transpose, _drop, _double, _repeat, _leave_out, _suffix))(word, random)


def _neighbour(word: str, random: Random) -> str:
    at = random.randrange(len(word)) if word else 0
    for row in KEYBOARD:
        if word[at : at + 1] and word[at] in row:
            near = row[max(row.index(word[at]) - 1, 0) : row.index(word[at]) + 2].replace(word[at], "")
            return word[:at] + random.choice(near) + word[at + 1 :]
    return word


def _transpose(word: str, random: Random) -> str:
    at = random.randrange(max(len(word) - 1, 1))
    return word[:at] + word[at : at + 2][::-1] + word[at + 2 :]


def _drop(word: str, random: Random) -> str:
    at = random.randrange(len(word)) if len(word) > 2 else 0
    return word[:at] + word[at + 1 :] if len(word) > 2 else word


def _double(word: str, random: Random) -> str:
    at = random.randrange(len(word)) if word else 0
    return word[:at] + word[at : at + 1] + word[at:]


def _repeat(word: str, random: Random) -> str:
    return f"{word} {word}" if len(word) < 5 else word


def _leave_out(word: str, random: Random) -> str:
    return "" if len(word) < 5 else word


def _suffix(word: str, random: Random) -> str:
    for ending, other in (("ing", ""), ("ed", ""), ("s", ""), ("ly", "")):
        if word.endswith(ending) and len(word) > len(ending) + 3:
            return word[: -len(ending)] + other
    return word + random.choice(("s", "ed", "ing")) if word.isalpha() and len(word) > 3 else word


def _swap(text: str, pairs: Sequence[tuple[str, str]], random: Random, *, rate: float) -> str:
    """Some of the words of ``pairs`` for their partners, each place by itself."""
    others = defaultdict(list)
    for right, wrong in pairs:
        others[right].append(wrong)
    pattern = r"(?<![\w'])(" + "|".join(map(re.escape, sorted(others, key=len, reverse=True))) + r")(?![\w'])"
    return re.sub(pattern, lambda found: random.choice(others[found[0]]) if random.random() < rate else found[0], text)
