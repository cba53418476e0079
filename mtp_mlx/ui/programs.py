"""The same runs for programs, through ``gradio_client``: /run and /stats, typed and documented."""

# No postponed annotations here: Gradio reads the types of the endpoints from them.
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

import gradio as gr

from mtp_mlx.engine import Engine, Job
from mtp_mlx.request import DRAFT_LENGTH, Request

TaskName = Literal["proofread", "summarize"]
DrafterName = Literal["mtp", "auto", "standalone", "lookup", "plain"]


def add_endpoints(engine: Engine) -> Callable[[gr.Request], None]:
    """Add them to the page that is being built; return what stops the runs of a program that is gone."""
    jobs: list[tuple[str | None, Job]] = []  # with the session of each

    def finished(request: Request, session: gr.Request) -> dict[str, Any]:
        mine = (session.session_hash, engine.submit(request))
        jobs.append(mine)
        try:
            return deque(engine.follow(mine[1]), maxlen=1).pop()
        finally:
            jobs.remove(mine)

    def stop(session: gr.Request) -> None:
        for owner, job in list(jobs):
            if owner == session.session_hash:
                job.cancelled.set()

    def run(
        session: gr.Request,
        text: str,
        task: TaskName = "proofread",
        drafter: DrafterName = "mtp",
        draft_length: int = DRAFT_LENGTH,
        max_tokens: int | None = None,
        profile: str = "none",
        inspect: bool = False,
    ) -> dict[str, Any]:
        """Run a task on a text and return its whole trace, what `mtp-mlx run --json` prints.

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
        return _trace(lambda wanted: finished(wanted, session), task, text, drafter, options)

    def stats(
        session: gr.Request,
        text: str,
        task: TaskName = "proofread",
        drafter: DrafterName = "mtp",
        draft_length: int = DRAFT_LENGTH,
        max_tokens: int | None = None,
        profile: str = "none",
    ) -> dict[str, Any]:
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
        return _trace(lambda wanted: finished(wanted, session), task, text, drafter, options)["stats"]

    for endpoint in (run, stats):
        gr.api(endpoint, api_name=endpoint.__name__, concurrency_limit=None)  # pyright: ignore[reportPrivateImportUsage] (the engine queues)
    return stop


def _trace(
    finished: Callable[[Request], dict[str, Any]], task: str, text: str, drafter: str, options: dict[str, Any]
) -> dict[str, Any]:
    """The trace of a run when it is over.

    Raises:
        gr.Error: it failed, or the request makes no sense; a program gets the line that says why.
    """
    try:
        request = Request(task, text, drafter=drafter, **options)
    except (ValueError, TypeError) as error:
        raise gr.Error(str(error), print_exception=False) from error
    news = finished(request)
    if news["status"] == "failed":
        raise gr.Error(news["message"], print_exception=False)
    return news
