"""From texts to many kinds of training prompt: mistyped sentences, stacks of notifications, other wordings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from mtp_mlx.training.typos import mistype, read_misspellings
from mtp_mlx.training.wordings import WORDINGS

APPS = ("Messages", "WhatsApp", "Slack", "Telegram", "Signal", "Teams", "Instagram", "Messenger", "Discord", "Gmail")
SENDERS = (
    *("Mom", "Dad", "Anna", "Ben", "Carlos", "Dana", "Emma", "Farid", "Grace", "Hiro", "Ines", "Jonas", "Kim", "Lena"),
    *("Mia", "Nora", "Omar", "Priya", "Quinn", "Ravi", "Sofia", "Tom", "Uma", "Viktor", "Wei", "Yuki", "Zoe", "Coach"),
    *("Team", "Family", "Book club", "Class 4b", "Office", "Landlord", "Dr. Lee", "Sam", "Alex", "Jane", "Ms. Ortiz"),
)
# Notifications that no person wrote; {} are a number each.
AUTOMATIC = (
    "Calendar: Dentist at {} pm tomorrow",
    "Calendar: Team meeting moved to {}:30",
    "Weather: Rain from {} pm, high of {} degrees",
    "Weather: Strong wind expected tonight, up to {} km/h",
    "Bank: Your card was charged ${}.99 at the corner shop",
    "Bank: Your balance is below ${}",
    "Delivery: Your parcel arrives today between {} and {} pm",
    "Delivery: We could not deliver your parcel. Pick it up within {} days",
    "News: {} hurt in motorway accident near the airport",
    "News: City council votes to raise bus fares by {} percent",
    "Fitness: You walked {},000 steps today. {} minutes to your goal",
    "Reminder: Water the plants",
    "Reminder: Call the landlord about the heating before {} pm",
    "Airline: Flight {}{} now boards at gate {}",
    "Train: The {}:15 to the city centre is {} minutes late",
    "System: Software update ready. Restart to install version {}.{}",
    "Photos: {} new memories from last summer",
    "School: No classes on Friday the {}th",
)
MESSAGE = (8, 400)  # characters: what is shorter or longer is no message
STACKS_A_LINE = 0.35  # how many stacks of notifications are made of a line of messages
OTHER_WORDING = 0.35  # the share of prompts that ask in another way than the product does


def read_messages(folder: Path) -> dict[str, list[str]]:
    """The lines of each .txt file of a folder that are messages, by file name without ending."""
    files = sorted(folder.glob("*.txt"))
    lines = {path.stem: path.read_text(encoding="utf-8", errors="replace").split("\n") for path in files}
    least, most = MESSAGE
    return {
        name: [line.strip() for line in found if least <= len(line.strip()) <= most] for name, found in lines.items()
    }


def vary(rows: Iterable[Mapping[str, Any]], folder: Path, *, held_back: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The rows, a part of them in other wordings, and rows made of the folder's single messages.

    Args:
        held_back: texts that must stay unseen; messages that they contain are left out.
    """
    for row in rows:
        yield reworded(row)
    unseen = {line.partition(": ")[2] or line for text in held_back for line in text.splitlines()}
    misspellings = read_misspellings(folder)
    for name, lines in read_messages(folder).items():
        lines = [line for line in lines if line not in unseen]
        for number, line in enumerate(lines):
            row = proofreading(f"typos-{name}-{number}", line, misspellings)
            yield reworded({**row, "kind": f"typos {name}"})
        random = Random(f"stacks {name}")
        for number in range(int(STACKS_A_LINE * len(lines))):
            at = random.randrange(len(lines))
            row = stack(f"stack-{name}-{number}", lines[at : at + 6], lines, random)
            yield reworded({**row, "kind": f"stacks {name}"})


def reworded(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row, with ``wording`` set to another than the product's for ``OTHER_WORDING`` of all ids."""
    others = len(WORDINGS[row["task"]]) - 1
    random = Random(f"wording {row['id']}")
    return {**row, "wording": random.randint(1, others) if others and random.random() < OTHER_WORDING else 0}


def proofreading(id: str, text: str, misspellings: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """A row to proofread: ``text`` mistyped."""
    return {"id": id, "document": id, "task": "proofread", "text": mistype(text, Random(id), misspellings)}


def stack(id: str, following: Sequence[str], anywhere: Sequence[str], random: Random) -> dict[str, Any]:
    """A row to summarize: one to six notifications, some of one conversation, some of several people and apps."""
    count = random.choice((1, 2, 2, 3, 3, 3, 4, 5, 6))
    related = random.random() < 0.5
    people = random.sample(SENDERS, random.choice((1, 2)) if related else min(count, 3))
    app = random.choice((*APPS, "", "", "")) if random.random() < 0.7 else None
    lines = []
    for i in range(count):
        if random.random() < 0.15:
            lines.append(re.sub(r"\{\}", lambda _: str(random.randint(2, 11)), random.choice(AUTOMATIC)))
            continue
        text = following[i % len(following)] if related else random.choice(anywhere)
        source = random.choice(APPS) if app is None else app
        lines.append(f"{source}: {random.choice(people)}: {text}" if source else f"{random.choice(people)}: {text}")
    return {"id": id, "document": id, "task": "summarize", "text": "\n".join(lines)}


def from_written(id: str, document: str, text: str, misspellings: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """What the backbone wrote as texts for both tasks: the whole to summarize, a sentence or two to proofread."""
    whole = re.match(r"(?s).*[.!?]", text.strip())  # what follows the last full stop was cut off
    if whole is None:
        return []
    sentences = re.split(r"(?<=[.!?])\s+", " ".join(whole[0].split()))
    random = Random(id)
    at, count = random.randrange(len(sentences)), random.choice((1, 1, 2, 3))
    part = proofreading(f"{id}-proofread", " ".join(sentences[at : at + count]), misspellings)
    rows = [part, {"id": f"{id}-summarize", "task": "summarize", "text": whole[0]}]
    return [reworded({**row, "document": document, "kind": "written"}) for row in rows]
