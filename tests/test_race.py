"""The race: two decodes of one text on one clock, a verdict by ids, and a slow-down that is called one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect
from tab import END, Tab, needs_browser, shots
from theatre import Script, losing, script, stage, theatre

pytestmark = needs_browser
__all__ = ["losing", "script", "stage", "theatre"]  # fixtures


def raced(tab: Tab, text: str) -> None:
    before = tab.page.evaluate("document.querySelector('.mtp').trace.run")
    tab.page.get_by_label("Text").fill(text)
    tab.page.click("#race")
    tab.wait("done", but=before)
    expect(tab.page.locator("[data-part=verdict]")).to_be_visible()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"plain_seconds": 0.1}, ["all 4 token ids are equal", "2 passes instead of 4, and 1.90 times as fast."]),
        ({"plain_seconds": 0.01}, ["all 4 token ids are equal", "and 0.19 times as fast: slower"]),
        ({"plain_end": "!"}, ["differ from token 5 on"]),
    ],
)
def test_the_verdict_is_the_measurement(stage: Callable[..., Tab], script: Script, options: dict, said: list[str]):
    vars(script).update(options)
    tab = stage()
    raced(tab, "abcd")
    for sentence in said:
        assert sentence in tab.part("verdict")


@pytest.mark.parametrize(("language", "seconds"), [("English", 0.1), ("한국어", 0.1)])
def test_plain_decode_against_itself_is_neither_faster_nor_slower(
    stage: Callable[..., Tab], script: Script, language: str, seconds: float
):
    script.plain_seconds = seconds
    tab = stage()
    tab.choose("None (plain)")
    tab.choose(language)
    said = {
        "English": "the same work: that the second was 1.00 times as fast is noise",
        "한국어": "1.00배인 것은 측정의 흔들림",
    }
    tab.page.locator("#text textarea").fill("abcd")
    tab.page.click("#race")
    tab.wait("done")
    expect(tab.page.locator("[data-part=verdict]")).to_contain_text(said[language])
    assert "slower" not in tab.part("verdict") and "느립니다" not in tab.part("verdict")


def test_of_what_took_no_time_no_speed_is_said(stage: Callable[..., Tab], script: Script):
    """A first token alone, say, which comes with the prompt."""
    script.plain_seconds = 0.0
    tab = stage()
    tab.choose("None (plain)")
    for text, said in (("abcd", "all 4 token ids are equal."), ("a", "the one token id is equal.")):
        tab.page.locator("#text textarea").fill(text)
        tab.page.click("#race")
        tab.wait("done")
        expect(tab.page.locator("[data-part=verdict]")).to_have_text(f"The texts are identical: {said}")


def test_both_run_on_one_clock(stage: Callable[..., Tab]):
    """Plain decode writes a token each tenth of a second; the other two and a correction at 0.11, the last at 0.21."""
    tab = stage()
    raced(tab, "abcd")
    scrub = tab.page.locator("[data-part=raceScrub]")
    for clock, plain, other in [("0", "", ""), ("0.15", "a", "abc"), ("0.25", "ab", "abcd"), ("0.4", "abcd", "abcd")]:
        scrub.fill(clock)
        assert tab.page.locator(".lanes .text").all_inner_texts() == [plain, other]
    counters = tab.page.locator(".lanes .count").all_inner_texts()
    assert counters == ["4 passes, 4 tokens, 0.40 s – done", "2 passes, 4 tokens, 0.21 s – done"]
    tab.page.screenshot(path=shots("race.png"), full_page=True)
    tab.run("xyz")
    expect(tab.page.locator("[data-part=race]")).to_be_hidden()


def test_stop_ends_a_race_in_its_first_lane_too(stage: Callable[..., Tab], script: Script):
    script.gate.clear()
    tab = stage()
    tab.page.get_by_label("Text").fill("abcd")
    tab.page.click("#race")
    tab.wait("running")
    expect(tab.page.locator("#race")).to_be_disabled()
    tab.page.click("#stop")
    assert tab.wait(*END)["status"] == "stopped"
    expect(tab.page.locator("#race")).to_be_enabled()
    assert tab.page.locator("[data-part=race]").is_hidden()


def test_a_race_over_nothing_says_so(stage: Callable[..., Tab]):
    tab = stage()
    tab.page.get_by_label("Text").fill(" ")
    tab.page.click("#race")
    assert tab.wait(*END)["status"] == "failed"
    assert "the text is empty" in tab.part("status")


def test_the_end_of_the_first_lane_is_not_lost(
    stage: Callable[..., Tab], script: Script, losing: Callable[[str], None]
):
    """The second lane begins at once after it, and of two pieces of news the framework may pass on the newer one."""
    losing("finish")
    tab = stage()
    raced(tab, "abcd")
    assert "all 4 token ids are equal" in tab.part("verdict")


@pytest.mark.parametrize("lane", [1, 2])
def test_a_recorded_run_that_is_opened_meanwhile_stays_in_sight(stage: Callable[..., Tab], script: Script, lane: int):
    script.pause = 0.1
    tab = stage()
    tab.page.get_by_label("Text").fill("abcdefgh")
    tab.page.click("#race")
    tab.page.wait_for_function("(lane) => document.querySelector('.mtp').trace.lane === lane", arg=lane)
    tab.page.locator("[data-part=openRecorded]").click()
    text = tab.part("origin")
    tab.wait("done")
    expect(tab.page.locator("#race")).to_be_enabled()
    expect(tab.page.locator("[data-part=origin]")).to_be_visible()
    assert tab.part("origin") == text and tab.page.locator("[data-part=race]").is_hidden()
    raced(tab, "abcd")  # the next one is shown again
    expect(tab.page.locator("[data-part=origin]")).to_be_hidden()


@pytest.mark.parametrize("place", [".round .token", "[data-part=play]", "[data-part=download]"])
def test_the_focus_does_not_fall_where_the_second_lane_begins(stage: Callable[..., Tab], script: Script, place: str):
    script.pause = 0.1
    tab = stage()
    tab.page.get_by_label("Text").fill("abcdefgh" * 2)
    tab.page.click("#race")
    tab.page.wait_for_selector(".round .token")
    tab.page.locator(place).first.focus()
    assert tab.page.evaluate("document.querySelector('.mtp').trace.lane") == 1
    tab.wait("done")
    assert tab.page.evaluate("document.querySelector('.mtp').contains(document.activeElement)")
    tab.page.keyboard.press("Tab")
    expect(tab.page.locator(".round .token").first).to_be_focused()


def test_the_second_lane_does_not_scroll_the_page(stage: Callable[..., Tab], script: Script):
    script.pause = 0.1
    tab = stage(width=390)
    tab.page.get_by_label("Text").fill("abcdefgh")
    tab.page.click("#race")
    tab.page.wait_for_selector(".round .token")
    assert tab.page.evaluate("scrollY") > 0  # a narrow screen shows the run where it begins
    tab.page.evaluate("scrollTo(0, 0)")
    tab.wait("done")
    assert tab.page.evaluate("scrollY") == 0
