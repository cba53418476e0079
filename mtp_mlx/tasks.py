"""The two tasks: what the model is asked, how long an answer may be, and examples to try."""

from __future__ import annotations

from dataclasses import dataclass

TEXT = "{text}"  # where a user's text goes in the last message; it may hold anything, this mark included


@dataclass(frozen=True)
class Task:
    """A task prompt.

    Attributes:
        messages: (role, content) pairs for the chat template; the last content holds ``{text}`` once.
        answer_share: most answer tokens per token of the text, on top of ``answer_floor``.
    """

    name: str
    title: str
    help: str
    messages: tuple[tuple[str, str], ...]
    examples: tuple[str, ...]
    answer_floor: int
    answer_share: float = 0.0
    max_text_tokens: int = 2048

    def default_max_tokens(self, text_tokens: int) -> int:
        """The token budget of an answer where none is asked for."""
        return self.answer_floor + int(self.answer_share * text_tokens)


_PROOFREAD = "Rewrite this message with correct spelling, grammar and punctuation:\n\n"

PROOFREAD = Task(
    name="proofread",
    title="Proofread",
    help="a message to correct",
    messages=(
        ("user", _PROOFREAD + "how r u doing today"),
        ("assistant", "How are you doing today?"),
        ("user", _PROOFREAD + TEXT),
    ),
    examples=(
        "i has went to the store yesterday and buyed three apple",
        "hey can you send me teh report befor 5pm tommorow thx",
        "I dont have one. You can bet that the movie will be good when he is in it, like De Niro ou Al Pacino, "
        "but I cant single any one out.",
        "if you could send me the boarding pass that would be helpful",
    ),
    answer_floor=48,
    answer_share=1.5,
)

SUMMARIZE = Task(
    name="summarize",
    title="Summarize notifications",
    help="one notification a line, each as `App or sender: text`",
    messages=(("user", "Here are the notifications on my phone:\n\n" + TEXT + "\n\nSummarize them in one sentence."),),
    examples=(
        "Mom: Are you coming for dinner on Sunday?\nMom: Bring the kids\nCalendar: Dentist at 3 pm tomorrow",
        "Slack: Ana: the deploy is broken again\nSlack: Ben: rolling back now\nSlack: Ana: thanks, all green\n"
        "Weather: Rain from 4 pm",
        "Delivery: Your package is out for delivery\nDelivery: Your package was delivered at the front door\n"
        "News: Stocks rise after rate cut",
        "Jane: Running 10 min late\nJane: Parking now\nJane: Where are you sitting?",
    ),
    answer_floor=96,
)

TASKS = {task.name: task for task in (PROOFREAD, SUMMARIZE)}
