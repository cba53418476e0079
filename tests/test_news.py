"""What a browser is told of a run: every round once, no round at the price of those before it."""

from __future__ import annotations

import json
from typing import Any

from mtp_mlx.events import Done, Draft, Prefilled, Round
from mtp_mlx.trace import Trace
from mtp_mlx.ui.news import Fresh


def story(rounds: int) -> list[dict[str, Any]]:
    """All news of a run of so many rounds."""
    trace = Trace("proofread", "mtp", 8, 2, 3 * rounds, lambda ids: "a" * len(ids), frozenset(), input="ab" * 500)
    news = [trace.to_json()]
    events = [Prefilled(9, 0.1)]
    for _ in range(rounds):
        events += [Draft((1, 2), (0.5, 0.5)), Round((1, 2), (0.5, 0.5), 2, 3, "bonus", 1.0, 0.01, 0.1)]
    for event in (*events, Done("budget")):
        trace.add(event)
        news.append(trace.to_json())
    return news


def test_what_is_told_adds_up_to_what_happened():
    fresh, known, rounds = Fresh(), {}, []
    for news in story(20):
        told = fresh(news)
        assert told["since"] == len(rounds)
        rounds += told["rounds"]
        known |= told
        growing = {"token_ids", "text", "rounds"}
        assert {k: v for k, v in known.items() if k not in {*growing, "since"}} == {
            k: v for k, v in news.items() if k not in growing
        }
        assert rounds == news["rounds"] and fresh.last is news
        assert "".join(round["added"] for round in rounds) == news["text"]
    assert known["text"] == news["text"]


def test_a_round_costs_the_same_however_long_the_text_is():
    fresh = Fresh()
    sizes = [len(json.dumps(fresh(news))) for news in story(3000)]
    assert max(sizes[5000:-1]) <= max(sizes[10:100]) + 40  # some numbers have more digits
    assert sizes[0] > 1000 > max(sizes[1:-1])  # the text that was asked for is told once


def test_news_that_is_told_again_has_no_rounds_again():
    fresh = Fresh()
    news = story(3)[-2]
    assert len(fresh(news)["rounds"]) == 3
    assert fresh(news) == {"status": "running", "since": 3, "rounds": []}


def test_waiting_and_loading_are_told_as_they_are():
    fresh = Fresh()
    for news in ({"status": "queued", "place": 2}, {"status": "loading", "stage": "read", "done": 1, "of": 2}):
        assert fresh(news) == news
    assert fresh.last is None
