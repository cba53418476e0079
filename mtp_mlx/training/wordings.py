"""Other ways to ask for the two tasks, and to ask for anything: a head that has seen one prompt only knows that one."""

from __future__ import annotations

from dataclasses import replace

from mtp_mlx.tasks import PROOFREAD, SUMMARIZE, TEXT, Task

WRITE = Task(
    name="write",
    title="Write",
    help="any request",
    messages=(("user", TEXT),),
    examples=(),
    answer_floor=96,
)


def _asked(task: Task, *contents: str) -> tuple[Task, ...]:
    return tuple(replace(task, messages=(("user", content),)) for content in contents)


# The first of each task is the product's own prompt.
WORDINGS: dict[str, tuple[Task, ...]] = {
    PROOFREAD.name: (
        PROOFREAD,
        *_asked(
            PROOFREAD,
            "Correct the spelling and grammar of this text. Answer with the corrected text only.\n\n" + TEXT,
            "Proofread: " + TEXT,
            "Fix the typos in the following message:\n" + TEXT,
            "Please check this for mistakes and give me the corrected version:\n\n" + TEXT,
            'Fix grammar, spelling and punctuation:\n"' + TEXT + '"',
            TEXT + "\n\nRewrite the text above without any errors.",
            "A learner of English wrote this. Write it in correct English.\n\n" + TEXT,
        ),
        replace(
            PROOFREAD,
            messages=(
                ("system", "You correct what the user writes. You answer with the corrected text and nothing else."),
                ("user", TEXT),
            ),
        ),
    ),
    SUMMARIZE.name: (
        SUMMARIZE,
        *_asked(
            SUMMARIZE,
            "Summarize these notifications in one short sentence:\n\n" + TEXT,
            "Summarize:\n" + TEXT,
            "What is this conversation about? Answer in one or two sentences.\n\n" + TEXT,
            TEXT + "\n\nGive me a brief summary of the text above.",
            "Write a one-sentence summary of the following messages.\n\n" + TEXT + "\n\nSummary:",
            "I was away. What did I miss? Tell me briefly.\n\n" + TEXT,
            "TL;DR of this:\n\n" + TEXT,
        ),
        replace(
            SUMMARIZE,
            messages=(
                ("system", "You summarize what the user sends in a single sentence."),
                ("user", TEXT),
            ),
        ),
    ),
    WRITE.name: (WRITE,),
}
