"""The page over a stand-in whose tokens are characters: what it shows of any text, any order of events, any screen."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import cast

import pytest
from playwright.sync_api import BrowserContext, Page, expect
from tab import END, Tab, needs_browser, shots
from theatre import WRONG, Script, script, stage, theatre

from mtp_mlx.engine import Engine
from mtp_mlx.pipeline import Pipeline
from mtp_mlx.ui import page as pages
from mtp_mlx.ui.words import EN

pytestmark = needs_browser
__all__ = ["script", "stage", "theatre"]  # fixtures


@pytest.mark.parametrize(
    "text",
    [
        "<img src=x onerror=alert(1)><script>alert(2)</script>",
        "${alert(1)} {{7*7}} {{{value}}} `${document.title}` \\",
        "שלום עולם \u202eabc\u202c مرحبا",
        "안녕하세요 👩‍👩‍👧 e\u0301 \U0001d54f",
        "a\n\n b\tc\x00\x1b[31m",
        '__i18n__{"key": "submit"} &lt;b&gt; &amp;',
    ],
)
def test_text_of_any_kind_is_only_text(stage: Callable[..., Tab], script: Script, text: str):
    script.wrong = script.warning = text
    tab = stage()
    trace = tab.run(text)
    assert trace["status"] == "done" and trace["text"] == text
    assert tab.part("text") == text
    assert text in tab.part("warnings")
    plain = re.sub(r"[\s\x00-\x1f]", "", text)
    assert any(state == "rejected" and re.sub("[·⏎⇥␀␛]", "", shown) == plain for state, shown in tab.rounds()[0])
    script.failure = text
    assert tab.run(text)["status"] == "failed"
    assert " ".join(text.split()) in " ".join(tab.part("status").split())
    assert tab.page.locator(".mtp :is(img, script, b)").count() == 0


def test_white_space_can_be_seen(stage: Callable[..., Tab]):
    tab = stage()
    tab.run(" a\nb\tc\x00")
    shown = [text for tokens in tab.rounds() for state, text in tokens if state in ("accepted", "correction", "plain")]
    assert shown == ["·", "a", "⏎", "b", "⇥", "c", "␀"]


def test_a_draft_waits_in_sight_and_is_judged_all_at_once(stage: Callable[..., Tab], script: Script):
    script.gate.clear()
    tab = stage()
    tab.run("abcd", until=("running",))
    tab.page.wait_for_selector(".round .pending:nth-child(4)")
    assert tab.rounds() == [[["pending", "a"], ["pending", "b"], ["pending", "☓"], ["pending", "☓"]]]
    script.gate.set()
    tab.wait("done")
    assert tab.rounds()[0] == [
        ["accepted", "a"],
        ["accepted", "b"],
        ["rejected", "☓"],
        ["unread", "☓"],
        ["correction", "c"],
    ]


def opened(page: Page) -> str:
    return page.locator(".detail .why").inner_text().replace("\n", "")


def test_a_token_opens_to_what_stands_behind_it(stage: Callable[..., Tab]):
    tab = stage()
    tab.run("abcd")
    chips = tab.page.locator(".round").first.locator(".token")
    wanted = {
        0: "The head wrote a (0.50), and the model wanted the same (0.75).",
        2: "The head wrote ☓ (0.50); the model wanted c (0.75), and ranked that guess 2nd.",
        3: "Not read: after a wrong guess",
        4: "The model’s own token, c (0.75), in place of the first wrong guess.",
    }
    for place, sentence in wanted.items():
        chips.nth(place).click()
        assert opened(tab.page).startswith(sentence)
        assert chips.nth(place).get_attribute("aria-expanded") == "true"
        assert tab.page.locator(".detail").count() == 1
    chips.nth(2).click()
    facts = tab.page.locator(".detail .facts div").all_inner_texts()
    assert [fact.split("\n")[1] for fact in facts] == [
        f"{WRONG}",
        "3 of 4",
        "50 %",
        "25 %",
        "2",
        "1.50, between the model’s two largest logits here",
    ]
    tops = [table.locator("th").all_inner_texts() for table in tab.page.locator(".bars").all()]
    assert tops == [["☓"], ["c", "☓"]]
    chips.nth(2).click()
    assert tab.page.locator(".detail").count() == 0


def test_keys_walk_the_tokens_with_one_stop_a_row(stage: Callable[..., Tab]):
    tab = stage()
    tab.run("abcdefgh")
    assert tab.page.locator(".round .token[tabindex='0']").count() == tab.page.locator(".round").count() == 4
    here = """[...document.querySelectorAll(".round")].flatMap((round, i) =>
        [...round.querySelectorAll(".token")].flatMap((t, j) => (t === document.activeElement ? [i, j] : [])))"""
    tab.page.locator(".round .token").first.focus()
    for key, place in {"ArrowRight": [0, 1], "End": [0, 4], "ArrowDown": [1, 0], "Home": [1, 0]}.items():
        tab.page.keyboard.press(key)
        assert tab.page.evaluate(here) == place
    tab.page.keyboard.press("Enter")
    assert opened(tab.page).startswith("Nothing was guessed here")
    tab.page.keyboard.press("ArrowUp")
    assert opened(tab.page).startswith("The head wrote a")
    tab.page.keyboard.press("Escape")
    assert tab.page.locator(".detail").count() == 0
    assert tab.page.evaluate(here) == [0, 0]
    tab.page.keyboard.press("Tab")
    assert tab.page.evaluate(here) == [1, 0]


def test_a_touch_opens_a_token(theatre: tuple[Script, str], script: Script, browser: BrowserContext):
    assert browser.browser
    touch = browser.browser.new_context(has_touch=True, is_mobile=True)
    tab = Tab(touch, theatre[1], width=390)
    tab.run("abcd")
    tab.page.locator(".round .rejected").first.tap()
    assert "ranked that guess 2nd" in opened(tab.page)
    touch.close()


def test_where_the_head_looked_is_tinted_layer_by_layer(stage: Callable[..., Tab]):
    tab = stage()
    tab.run("abcdefgh")
    tab.page.locator(".round").nth(2).locator(".accepted").first.click()
    tinted = tab.page.locator(".tinted")
    assert tinted.inner_text() == "^say:abcd"
    shares = "(n) => [...n.children].map((t) => [t.textContent, t.style.getPropertyValue('--share'), t.title])"
    assert [t for t in tinted.evaluate(shares) if t[2]] == [
        ["^", "0%", "50 %"],
        ["s", "15%", "10 %"],
        ["a", "60%", "40 %"],
    ]
    assert "Most at: a 40 %, s 10 %, and 50 % rests" in tab.page.locator(".attention").inner_text()
    tab.page.get_by_label("head layer 1").focus()
    tab.page.keyboard.press("ArrowDown")
    assert [t for t in tinted.evaluate(shares) if t[2]] == [["y", "60%", "100 %"]]
    expect(tab.page.get_by_label("head layer 2")).to_be_focused()
    tab.page.locator(".round").nth(2).locator(".correction").click()  # the model's own: no head looked
    assert tinted.count() == 0


def test_results_of_another_text_say_so(stage: Callable[..., Tab]):
    tab = stage()
    note = tab.page.locator("[data-part=stale]")
    tab.page.get_by_label("Text").fill("before any run")
    expect(note).to_be_hidden()
    tab.run("abcd")
    expect(note).to_be_hidden()
    tab.page.get_by_label("Text").fill("abcde")
    expect(note).to_be_visible()
    tab.page.get_by_label("Text").fill("abcd")
    expect(note).to_be_hidden()
    tab.choose("Summarize notifications")
    expect(note).to_be_visible()
    tab.run("xyz")
    expect(note).to_be_hidden()


def test_a_text_that_was_changed_before_its_run_began_is_seen_to_be_another(stage: Callable[..., Tab], script: Script):
    script.gate.clear()
    stage().run("efgh", until=("running",))
    tab = stage()
    tab.run("abcd", until=("queued",))
    tab.page.get_by_label("Text").fill("abcde")
    script.gate.set()
    assert tab.wait("done")["input"] == "abcd"
    expect(tab.page.locator("[data-part=stale]")).to_be_visible()
    tab.run()
    expect(tab.page.locator("[data-part=stale]")).to_be_hidden()


def test_run_and_stop_are_there_when_they_can_do_something(stage: Callable[..., Tab], script: Script):
    script.gate.clear()
    tab = stage()
    run, stop = tab.page.locator("#run"), tab.page.locator("#stop")
    expect(stop).to_be_disabled()
    run.focus()
    tab.page.keyboard.press("Enter")
    expect(run).to_be_disabled()
    expect(stop).to_be_focused()
    script.gate.set()
    tab.wait("done")
    expect(run).to_be_focused()
    expect(stop).to_be_disabled()


def test_the_charts_count_what_the_passes_show(stage: Callable[..., Tab]):
    tab = stage()
    tab.run("abcdefgh")
    bars = [text.split() for text in tab.page.locator(".positions li").all_inner_texts()]
    assert bars == [["100", "%", "1"], ["100", "%", "2"], ["0", "%", "3"], ["0", "%", "4"]]
    assert tab.part("verifyTime") == "checking 0.40 s" and tab.part("draftTime") == "guessing 0.02 s"
    blocks = tab.page.locator("[data-part=verifying]").get_attribute("d") or ""
    assert blocks.count("M") == 4


def test_a_second_run_takes_the_place_of_the_first(stage: Callable[..., Tab], script: Script):
    script.gate.clear()
    tab = stage()
    first = tab.run("a first text", until=("running",))
    expect(tab.page.locator("#run")).to_be_disabled()
    tab.page.get_by_label("Text").fill("the second")
    tab.page.keyboard.press("Shift+Enter")
    tab.wait("starting", "queued", "running", but=first["run"])
    script.gate.set()
    second = tab.wait(*END, but=first["run"])
    assert second["status"] == "done" and tab.part("text") == "the second"


def test_many_clicks_at_once_end_in_one_whole_run(stage: Callable[..., Tab]):
    """Their requests may reach the server in any order, and their news the browser."""
    tab = stage()
    for clicks in (2, 3, 2, 5, 2, 3):
        before = tab.page.evaluate("document.querySelector('.mtp').trace.run")
        tab.page.evaluate("(n) => { for (let i = 0; i < n; i++) document.querySelector('#run').click(); }", clicks)
        tab.wait("done", but=before)
        tab.page.wait_for_timeout(300)
        assert tab.page.evaluate("document.querySelector('.mtp').trace.status") == "done"


def test_a_closed_tab_frees_the_model(stage: Callable[..., Tab], script: Script):
    script.gate.clear()
    closing, waiting = stage(), stage()
    closing.run("abcd", until=("running",))
    waiting.run("efgh", until=("queued",))
    closing.page.close()
    waiting.wait("running")


def test_more_tabs_than_a_browser_has_connections(stage: Callable[..., Tab]):
    """Six for a host; a tab that does nothing keeps none."""
    first, *_ = [stage() for _ in range(7)]
    first.page.bring_to_front()
    assert first.run("abcd")["status"] == "done"


def test_stop_while_waiting_answers_at_once(stage: Callable[..., Tab], script: Script):
    script.gate.clear()
    stage().run("abcd", until=("running",))
    waiting = stage()
    waiting.run("efgh", until=("queued",))
    waiting.page.click("#stop")
    assert waiting.wait(*END)["status"] == "stopped"
    assert "before anything was written" in waiting.part("status")


def test_the_keyboard_is_enough(stage: Callable[..., Tab]):
    tab = stage()
    tab.page.get_by_label("Text").fill("typed")
    tab.page.keyboard.press("Shift+Enter")
    assert tab.wait("done")["text"] == "typed"
    tab.page.get_by_label("Text").fill("again")
    tab.page.keyboard.press("Tab")
    assert tab.page.evaluate("document.activeElement.id") == "run"
    first = tab.page.evaluate("document.querySelector('.mtp').trace.run")
    tab.page.keyboard.press("Enter")
    assert tab.wait("done", but=first)["text"] == "again"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_shows_all_of_it(stage: Callable[..., Tab], scheme: str):
    tab = stage(width=320, color_scheme=scheme, reduced_motion="reduce")
    tab.run("A-rather-long-word-in-a-text " * 4)
    assert tab.page.evaluate("document.documentElement.scrollWidth") == 320
    over = "[...document.querySelectorAll('.mtp *')].filter((n) => n.getBoundingClientRect().right > 320).length"
    assert tab.page.evaluate(over) == 0
    assert tab.page.locator(".mtp .status").evaluate("(n) => n.getBoundingClientRect().top < innerHeight")
    chip = tab.page.locator(".round .accepted").first
    style = (
        "(n) => { const s = getComputedStyle(n); return [s.borderTopStyle, s.borderTopColor, s.color, s.transition]; }"
    )
    border = {"light": "rgb(0, 114, 178)", "dark": "rgb(86, 180, 233)"}[scheme]
    ink = {"light": "rgb(26, 26, 26)", "dark": "rgb(242, 242, 242)"}[scheme]
    assert chip.evaluate(style) == ["solid", border, ink, "none"]
    tab.page.screenshot(path=shots(f"narrow-{scheme}.png"), full_page=True)


def test_the_page_is_at_most_200_ms_behind_the_engine(stage: Callable[..., Tab], script: Script):
    """From the engine's time stamp to the frame that shows it. The best quarter counts: machines are busy."""
    script.pause = 0.05
    tab = stage()
    tab.page.evaluate("""() => {
        window.behind = [];
        const root = document.querySelector(".mtp");
        let last = root.trace;
        const look = () => {
            if (root.trace !== last && root.trace.status === "running") {
                window.behind.push(Date.now() - 1000 * root.trace.at);
            }
            last = root.trace;
            requestAnimationFrame(look);
        };
        look();
    }""")
    tab.run("abcdefgh" * 12)
    behind = sorted(tab.page.evaluate("window.behind"))
    assert len(behind) >= 8 and behind[len(behind) // 4] <= 200, behind
    assert len(tab.rounds()) == 48
    tab.page.locator(".round .rejected").first.click()
    assert "ranked that guess 2nd" in opened(tab.page)


@pytest.mark.parametrize(("has_head", "drafter"), [(True, "mtp"), (False, "lookup")])
def test_without_a_head_prompt_lookup_drafts_and_the_page_says_so(has_head: bool, drafter: str):
    engine = Engine(lambda *_: cast(Pipeline, Script()))
    blocks = pages.build(engine, has_head=has_head)
    engine.close()
    radio = next(block for block in blocks.blocks.values() if getattr(block, "label", "") == "Drafter")
    config = radio.get_config()
    assert config["value"] == drafter
    assert (config["info"] == EN.no_head) is not has_head
