"""What a browser is told of a run: only what it does not have, so that no round costs more than the one before."""

from __future__ import annotations

from typing import Any

GROWING = ("text", "token_ids", "rounds")


class Fresh:
    """Takes from the news of one run what was told before.

    Of the rounds only those are told that are new, each once and whole, and ``since`` says how many came before; of
    the rest, what has changed. Text and ids are those of the rounds; the last news has the text as it is in the end.

    Attributes:
        last: the newest of what was given, whole; None before the first one.
    """

    def __init__(self) -> None:
        self.last: dict[str, Any] | None = None
        self._told = 0  # rounds

    def __call__(self, news: dict[str, Any]) -> dict[str, Any]:
        if "rounds" not in news:  # it waits, or loads
            return news
        before = self.last or {}
        rest = {name: value for name, value in news.items() if name not in GROWING}
        told = {name: value for name, value in rest.items() if name not in before or before[name] != value}
        told |= {"status": news["status"], "since": self._told, "rounds": news["rounds"][self._told :]}
        if news["status"] != "running":
            told["text"] = news["text"]
        self.last, self._told = news, len(news["rounds"])
        return told
