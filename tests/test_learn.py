"""Learn: seven steps and the fault lab, from what was recorded, before any model is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import accumulate
from operator import mul
from typing import Any

import pytest
from axe import violations
from playwright.sync_api import BrowserContext, expect
from tab import Tab, free_port, needs_browser, shots

from mtp_mlx.engine import Engine
from mtp_mlx.pipeline import Pipeline
from mtp_mlx.ui import page as pages
from mtp_mlx.ui import serve

pytestmark = needs_browser
LESSONS = json.loads((pages.ASSETS / "lessons.json").read_text("utf-8"))
RUNS = {
    name: json.loads((pages.ASSETS / "traces" / f"{file}.json").read_text("utf-8")) for name, file in pages.TOLD.items()
}
MIB = 2**20


def no_model(*_: Any) -> Pipeline:
    raise AssertionError("Learn needs no model")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    engine = Engine(no_model)
    blocks = pages.build(engine, has_head=True)
    yield serve.launch(blocks, "127.0.0.1", free_port())
    blocks.close(verbose=False)
    engine.close()


@pytest.fixture(scope="module")
def tab(address: str, browser: BrowserContext) -> Iterator[Tab]:
    """One page for all steps."""
    tab = Tab(browser, address)
    tab.page.get_by_role("tab", name="Learn").click()
    yield tab
    tab.close()
    assert tab.errors == [] and tab.dialogs == []
    assert all(url.startswith((address, "data:", "blob:")) for url in tab.requests)


@pytest.fixture
def step(tab: Tab) -> Callable[[str], Any]:
    """Opens a step by its name; gives its result line."""

    def opened(name: str) -> Any:
        tab.page.locator(".learn .steps").get_by_role("button", name=name).click()
        expect(tab.page.locator(".learn h2")).to_contain_text(name)
        expect(tab.page.locator(".learn h2")).to_be_focused()
        return tab.page.locator(".piece .result")

    return opened


def test_plain_decode_takes_a_pass_a_token(tab: Tab, step: Callable[[str], Any]):
    result = step("One token per pass")
    for done in range(1, len(RUNS["plain"]["rounds"]) + 1):
        tab.page.get_by_role("button", name="One more pass").click()
        expect(result).to_contain_text("The prompt’s pass, 1 token" if done == 1 else f"{done} passes")
    assert tab.page.locator(".piece .text").inner_text() == RUNS["plain"]["text"]
    expect(result).to_contain_text(
        f"{done} passes, the prompt’s included, for {len(RUNS['plain']['token_ids'])} tokens"
    )


def test_bets_are_judged_by_the_recorded_run(tab: Tab, step: Callable[[str], Any]):
    result = step("Drafts")
    kept = [round["accepted"] for round in RUNS["mtp"]["rounds"] if round["drafted"]]
    for i, accepted in enumerate(kept):
        wrong = i == 0
        tab.page.locator(".bets button").nth((accepted + 1) % 5 if wrong else accepted).click()
        expect(result).to_contain_text(f"{'Not quite' if wrong else 'Right'}: the model kept {accepted}")
        tab.page.locator(".bets button").click()
    expect(result).to_have_text("How many will stay?")  # and so again from the start


def test_no_drafter_changes_the_text(tab: Tab, step: Callable[[str], Any]):
    result = step("Verification")
    names = {"mtp": "MTP head", "lookup": "Prompt lookup", "standalone": "Standalone drafter", "plain": "Plain decode"}
    for name, shown in names.items():
        tab.page.locator(".piece").get_by_label(shown, exact=True).check(force=True)
        passes = len(RUNS[name]["rounds"])
        expect(result).to_have_text(
            f"{passes} passes, the prompt’s included, for 15 tokens. All token ids are those of plain decode."
        )
        assert tab.page.locator(".piece .round").count() == passes
        bold = tab.page.locator(".rows td.this").all_inner_texts()
        chosen = next((r for r in RUNS[name]["rounds"] if r["kind"] == "correction"), RUNS[name]["rounds"][0])
        assert len(bold) == chosen["accepted"] + 1
        tab.page.locator(".piece .round").last.click()
        last = RUNS[name]["rounds"][-1]
        bold = tab.page.locator(".rows td.this")
        expect(bold).to_have_count(last["accepted"] + (last["token"] is not None))  # after the end nothing is written


def test_the_head_is_seen_looking_at_what_it_copies(tab: Tab, step: Callable[[str], Any]):
    step("A frozen model and its head")
    drafted = [guess for round in RUNS["mtp"]["rounds"] for guess in round["drafted"]]
    assert tab.page.locator(".piece .token").count() == len(drafted)
    tab.page.locator(".piece .token input").first.focus()
    before = tab.page.locator(".tinted").inner_html()
    tab.page.keyboard.press("ArrowRight")
    expect(tab.page.locator(".piece .token").nth(1).locator("input")).to_be_checked()
    assert tab.page.locator(".tinted").inner_html() != before
    assert tab.page.locator(".piece .token input:focus").count() == 1


def test_memory_is_the_ledger(tab: Tab, step: Callable[[str], Any]):
    result = step("One memory of the text")
    slider = tab.page.get_by_label("Context")
    for key, point in {"Home": LESSONS["memory"][0], "End": LESSONS["memory"][-1]}.items():
        slider.press(key)
        assert slider.get_attribute("aria-valuetext") == f"{point['tokens']:,} tokens"
        shared = {"backbone weights", "KV cache"}
        adds = [sum(v for k, v in point[side].items() if k not in shared) for side in ("head", "standalone")]
        titles = tab.page.locator(".piece h3").all_inner_texts()
        assert [title.rpartition("adds ")[2] for title in titles] == [f"{bytes / MIB:.0f} MiB" for bytes in adds]
        assert f"{point['head']['KV cache'] / MIB:.{0 if key == 'End' else 1}f} MiB" in result.inner_text()
    assert LESSONS["memory"][0]["head"]["MTP head"] == LESSONS["memory"][-1]["head"]["MTP head"]


def test_the_best_draft_length_is_reckoned_from_the_measured_costs(tab: Tab, step: Callable[[str], Any]):
    result = step("How many guesses pay")
    costs = LESSONS["costs"]["mtp"]

    def rates(chances: list[float]) -> list[float]:
        tokens = [1 + sum(accumulate(chances[:k], mul)) for k in range(8)]
        return [n / (costs["passes"][str(k + 1)] + k * costs["step"]) for k, n in enumerate(tokens)]

    def shown() -> list[str]:
        return tab.page.locator(".columns strong").all_inner_texts()

    assert shown() == [f"{rate:.1f}" for rate in rates(LESSONS["acceptance"]["mtp"]["proofread"])]
    slider = tab.page.get_by_label("My own chance")
    for chance in (0, 100, 62):
        slider.fill(str(chance))
        all = rates([chance / 100] * 7)
        assert shown() == [f"{rate:.1f}" for rate in all]
        best = max(range(8), key=all.__getitem__)
        expect(tab.page.locator(".columns .best")).to_contain_text(f"★ {best}")
        expect(result).to_contain_text(f"{best} guess" if best else "No guesses are best")
        expect(tab.page.get_by_label("My own", exact=True)).to_be_checked()


def test_an_uncertain_text_is_one_where_drafts_fail(tab: Tab, step: Callable[[str], Any]):
    result = step("A text that is hard to guess")
    stats = RUNS["unsure"]["stats"]
    assert stats["acceptance_rate"] < 0.2 < 0.5 < RUNS["mtp"]["stats"]["acceptance_rate"]
    expect(result).to_contain_text(
        f"{stats['accepted']} of {stats['drafted']} guesses stayed: {stats['rounds'] + 1} passes"
    )
    assert tab.page.locator(".columns li").count() == stats["tokens"]


def test_the_fault_lab_shows_the_wrong_text_beside_the_right_one(tab: Tab, step: Callable[[str], Any]):
    step("Fault lab")
    for i, recorded in enumerate(LESSONS["faults"]):
        fault = tab.page.locator(".fault").nth(i)
        fault.get_by_role("switch").check()
        right, wrong = (recorded[side]["text"] for side in ("right", "wrong"))
        assert fault.locator(".text").all_inner_texts() == [right, wrong]
        assert fault.locator(".sides > div:first-child .differs").count() == 1
        assert fault.locator(".sides > div:last-child .differs").count() == 1
        same = [side.locator(".token.plain").all_inner_texts() for side in fault.locator(".sides > div").all()]
        assert same[0] == same[1]
    tab.page.screenshot(path=shots("faults.png"), full_page=True)
    tab.page.locator(".fault").first.get_by_role("switch").uncheck()
    expect(tab.page.locator(".fault").first.locator(".sides")).to_have_count(0)


def test_it_is_for_everyone(address: str, browser: BrowserContext):
    """Korean, in the dark, on a narrow screen: nothing hangs over, and axe finds nothing."""
    assert browser.browser
    context = browser.browser.new_context(locale="ko-KR")
    tab = Tab(context, address, width=320, color_scheme="dark", reduced_motion="reduce")
    tab.page.get_by_role("tab", name="배우기").click()
    steps = tab.page.locator(".learn .steps button")
    expect(steps).to_have_count(8)
    for i in range(8):
        steps.nth(i).click()
        for switch in tab.page.get_by_role("switch").all():
            switch.check()
        assert tab.page.evaluate("document.documentElement.scrollWidth") == 320
        if i in (2, 5, 6, 7):
            assert violations(tab.page) == []
    tab.page.screenshot(path=shots("learn-narrow.png"), full_page=True)
    tab.page.get_by_label("English").check()
    expect(tab.page.locator(".learn h2")).to_have_text("Fault lab")
    for switch in tab.page.get_by_role("switch").all():
        expect(switch).to_be_checked()
    expect(tab.page.locator(".fault .sides")).to_have_count(len(LESSONS["faults"]))
    context.close()
    assert tab.errors == []
