"""The fault lab on one's own text: what the bug does to it, or why it does nothing, as any other run of the page."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from axe import violations
from playwright.sync_api import Locator, expect
from tab import Tab, needs_browser, shots
from theatre import Script, losing, script, stage, theatre

from mtp_mlx.request import FAULTS

pytestmark = needs_browser
__all__ = ["losing", "script", "stage", "theatre"]  # fixtures


def lab(tab: Tab, text: str) -> Locator:
    """Types a text under Watch and opens the fault lab; gives its boxes, one a fault."""
    tab.page.locator("[role=tab]").first.click()
    tab.page.locator("#text textarea").fill(text)
    tab.page.locator("[role=tab]").nth(1).click()
    tab.page.locator(".learn .steps button").last.click()
    return tab.page.locator(".trial")


def tried(trial: Locator) -> Locator:
    trial.get_by_role("button").click()
    return trial.locator(".result")


def test_a_bug_is_run_on_the_text_that_is_typed(stage: Callable[..., Tab], script: Script):
    script.bugged = "abxd"
    tab = stage()
    trials = lab(tab, "abcd")
    assert trials.count() == len(FAULTS)
    expect(tab.page.locator(".own .text")).to_have_text("abcd")
    for i in range(len(FAULTS)):
        expect(tried(trials.nth(i))).to_have_text("On this text the fault shows.")
        texts = trials.nth(i).locator(".sides .text")
        assert texts.all_inner_texts() == ["abcd", "abxd"]
        assert trials.nth(i).locator(".sides .differs").count() == 2
    expect(trials.first.locator(".note").first).to_have_text(
        "Run here and now: MTP head, 4 guesses a pass, at most 4 tokens."
    )
    assert trials.first.locator(".sides + .note + .round .token").count() == 5  # the pass where it shows
    tab.page.screenshot(path=shots("tried.png"), full_page=True)
    tab.page.get_by_role("button", name="Change the text").click()
    expect(tab.page.locator("#text textarea")).to_be_focused()
    trials = lab(tab, "ab")
    expect(tab.page.locator(".own .text")).to_have_text("ab")
    expect(trials.first.locator(".result")).to_have_text("On this text the fault shows.")  # of the text that it names
    expect(trials.first.locator(".pair")).to_contain_text("To correct: abcd")


NOTHING = {
    "end": "no end of text was guessed before the last pass.",
    "budget": "before the last pass 4 of the 4 allowed tokens had been charged for.",
    "penalty": "4 guesses were taken for written, and the model chose the same tokens all the same.",
    "stale": "2 rejected guesses stayed in the cache, and the model chose the same tokens all the same.",
    "emoji": "no pass before the last one ended in the middle of a character.",
}


def test_a_first_token_alone_leaves_nothing_to_guess(stage: Callable[..., Tab], script: Script):
    script.alone = True
    trials = lab(stage(), "a")
    for i in range(len(FAULTS) - 1):
        expect(tried(trials.nth(i))).to_contain_text("changes nothing: the text ended with its first token")


def test_a_bug_that_does_nothing_is_said_to_do_nothing_and_why(stage: Callable[..., Tab]):
    tab = stage()
    trials = lab(tab, "abcd")
    for i, why in enumerate(NOTHING.values()):
        expect(tried(trials.nth(i))).to_have_text(f"On this text the fault changes nothing: {why}")
        assert trials.nth(i).locator(".sides .text").all_inner_texts() == ["abcd", "abcd"]
        assert trials.nth(i).locator(".differs, .round").count() == 0
    tab.page.locator("[role=tab]").first.click()
    tab.choose("None (plain)")
    trials = lab(tab, "abcd")
    for i, name in enumerate(FAULTS):
        why = NOTHING[name] if name == "emoji" else "nothing was guessed. Choose a drafter under Watch"
        expect(tried(trials.nth(i))).to_contain_text(why)


def test_it_waits_stops_and_fails_as_any_run(stage: Callable[..., Tab], script: Script):
    script.gate.clear()
    other, tab = stage(), stage()
    other.run("efgh", until=("running",))
    trials = lab(tab, "abcd")
    result, act = tried(trials.first), trials.first.get_by_role("button")
    expect(result).to_contain_text("First without the bug. Waiting: one run is ahead of yours.")
    expect(act).to_have_text("Stop")
    expect(act).to_be_focused()
    act.click()
    expect(result).to_have_text("Stopped before anything was written.")
    expect(act).to_have_text("Run this bug on my text")
    tried(trials.first)
    other.page.close()  # and its run is over
    expect(result).to_contain_text("First without the bug. Writing: 0 tokens of at most 4")
    # Another one takes its place, and what is left of the first is not shown.
    following = tried(trials.nth(1))
    expect(result).to_have_text(re.compile(r"^Stopped after \d tokens\. This is the text so far\.$"))
    script.gate.set()
    expect(following).to_contain_text("On this text the fault changes nothing")
    expect(trials.first.locator(".sides")).to_have_count(0)
    script.failure = "no weights <b>today</b>"
    expect(tried(trials.first)).to_have_text("Failed – no weights <b>today</b>")
    expect(tried(lab(tab, " ").first)).to_contain_text("the text is empty")
    expect(tab.page.locator(".own .text")).to_have_text("")


@pytest.mark.parametrize("name", ["rounds", "finish"])
def test_news_that_is_lost_is_asked_for(
    stage: Callable[..., Tab], script: Script, losing: Callable[[str], None], name: str
):
    losing(name)
    script.bugged, script.pause = "abcdefgx" * 4, 0.05
    trials = lab(stage(), "abcdefgh" * 4)
    expect(tried(trials.first)).to_have_text("On this text the fault shows.")
    assert trials.first.locator(".sides .text").all_inner_texts() == ["abcdefgh" * 4, "abcdefgx" * 4]


@pytest.mark.parametrize("media", [{"color_scheme": "light", "width": 640}, {"color_scheme": "dark", "width": 320}])
def test_it_is_for_everyone(stage: Callable[..., Tab], script: Script, media: dict[str, Any]):
    """On a narrow screen or at twice the size, by keyboard, in Korean too."""
    script.bugged = "A-long-word-and-another-text " * 3
    tab = stage(**media)
    trials = lab(tab, "A-rather-long-word-in-a-text " * 3)
    trials.first.get_by_role("button").focus()
    tab.page.keyboard.press("Enter")
    expect(trials.first.locator(".result")).to_have_text("On this text the fault shows.")
    expect(trials.first.get_by_role("button")).to_be_focused()
    assert tab.page.evaluate("document.documentElement.scrollWidth") == media["width"]
    assert violations(tab.page) == []
    tab.choose("한국어")
    expect(trials.first.locator(".result")).to_have_text("이 글에서는 오류가 드러납니다.")
    tab.page.screenshot(path=shots(f"tried-{media['width']}.png"), full_page=True)
    tab.choose("English")
