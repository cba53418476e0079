"""The same runs for programs, through ``gradio_client``: /run and /stats, typed and documented."""

# No postponed annotations here: Gradio reads the types of the endpoints from them.
from collections.abc import Iterator
from typing import Any, Literal

import gradio as gr

from mtp_mlx.engine import Engine
from mtp_mlx.request import DRAFT_LENGTH, Request

TaskName = Literal["proofread", "summarize"]
DrafterName = Literal["mtp", "auto", "standalone", "lookup", "plain"]


def add_endpoints(engine: Engine) -> None:
    """Add them to the page that is being built.

    Both tell what they have until the run is over, also where a program only waits for the end: Gradio notices that it
    is gone when there is something to tell, closes the iterator, and so frees the model.
    """

    def run(
        text: str,
        task: TaskName = "proofread",
        drafter: DrafterName = "mtp",
        draft_length: int = DRAFT_LENGTH,
        max_tokens: int | None = None,
        profile: str = "none",
        inspect: bool = False,
    ) -> Iterator[dict[str, Any]]:
        """Run a task on a text and return its whole trace, in the form that `mtp-mlx run --json` prints.

        By default 4 tokens are guessed for each pass, where that command measures how many pay, and what stands behind
        each token is left out, which that command always prints: `inspect=True` adds it.

        Args:
            text: the message to correct, or the notifications to summarize, one a line.
            task: what to do with it.
            drafter: who guesses; plain guesses nothing. The text is the same with each.
            draft_length: tokens to guess for each pass, 0 to 7.
            max_tokens: the most tokens to write; None for the task's own budget.
            profile: the phone whose memory budget is kept, pixel-9 for example.
            inspect: whether the trace holds what stands behind each token.

        Returns:
            The trace: text, token_ids, rounds, stats and more.
        """
        options = {"draft_length": draft_length, "max_tokens": max_tokens, "profile": profile, "inspect": inspect}
        for news in _told(engine, task, text, drafter, options):
            yield news if "stats" in news and news["status"] != "running" else {"status": news["status"]}

    def stats(
        text: str,
        task: TaskName = "proofread",
        drafter: DrafterName = "mtp",
        draft_length: int = DRAFT_LENGTH,
        max_tokens: int | None = None,
        profile: str = "none",
    ) -> Iterator[dict[str, Any]]:
        """Run a task on a text and return only its numbers.

        Args:
            text: the message to correct, or the notifications to summarize, one a line.
            task: what to do with it.
            drafter: who guesses; plain guesses nothing.
            draft_length: tokens to guess for each pass, 0 to 7.
            max_tokens: the most tokens to write; None for the task's own budget.
            profile: the phone whose memory budget is kept, pixel-9 for example.

        Returns:
            The numbers: rounds, tokens, drafted, accepted, additional_per_pass, acceptance_rate, seconds and more.
        """
        options = {"draft_length": draft_length, "max_tokens": max_tokens, "profile": profile}
        for news in _told(engine, task, text, drafter, options):
            yield news.get("stats", {})

    for endpoint in (run, stats):
        endpoint.__annotations__["return"] = dict[str, Any]  # Gradio tells programs of one answer, not of an iterator
        gr.api(endpoint, api_name=endpoint.__name__, concurrency_limit=None)  # pyright: ignore[reportPrivateImportUsage] (the engine queues)


def _told(engine: Engine, task: str, text: str, drafter: str, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All that becomes of a run.

    Raises:
        gr.Error: it failed, or the request makes no sense; a program gets the line that says why.
    """
    try:
        request = Request(task, text, drafter=drafter, **options)
    except (ValueError, TypeError) as error:
        raise gr.Error(str(error), print_exception=False) from error
    for news in engine.run(request):
        if news["status"] == "failed":
            raise gr.Error(news["message"], print_exception=False)
        yield news
