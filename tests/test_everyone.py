"""For everyone: no violation that axe-core finds, Korean and English, right-to-left, by voice, and little motion."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import pytest
from axe import violations
from playwright.sync_api import BrowserContext, expect
from tab import Tab, needs_browser, shots
from theatre import Script, script, stage, theatre

from mtp_mlx.ui.page import BROWSER
from mtp_mlx.ui.words import EN, KO

pytestmark = needs_browser
BORDERS = """() => [...document.querySelectorAll(".legend .token")].flatMap((token) => {
    const light = (color) => {
        const part = color.match(/[\\d.]+/g).map(Number);
        const lines = part.slice(0, 3).map((c) => c / 255)
            .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * lines[0] + 0.7152 * lines[1] + 0.0722 * lines[2];
    };
    const filled = (node) => {
        const color = getComputedStyle(node).backgroundColor;
        return /^rgb\\(/.test(color) ? color : filled(node.parentElement);
    };
    const style = getComputedStyle(token);
    if (style.borderTopStyle === "none" || style.borderTopColor === "rgba(0, 0, 0, 0)") return [];
    return [token, token.parentElement].map(filled).map((fill) => {
        const [low, high] = [light(style.borderTopColor), light(fill)].sort((a, b) => a - b);
        return [token.className, (high + 0.05) / (low + 0.05)];
    });
})"""
__all__ = ["script", "stage", "theatre"]  # fixtures


@pytest.fixture(scope="module")
def korean(theatre: tuple[Script, str], browser: BrowserContext) -> Iterator[BrowserContext]:
    """A browser whose language is Korean."""
    assert browser.browser
    context = browser.browser.new_context(locale="ko-KR")
    yield context
    context.close()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 320)])
def test_axe_finds_no_violation(stage: Callable[..., Tab], scheme: str, width: int):
    tab = stage(width=width, color_scheme=scheme, reduced_motion="reduce")
    tab.page.evaluate("document.querySelector('.mtp').append(new Image())")
    assert [line.split(":")[0] for line in violations(tab.page)] == ["image-alt"]  # it does find one, and no other
    tab.page.evaluate("document.querySelector('.mtp > img').remove()")
    tab.page.locator("#text textarea").fill("abcdefgh")
    tab.page.click("#race")
    tab.wait("done")
    tab.page.locator(".round .rejected").first.click()
    tab.page.locator(".legend summary").click()
    tab.page.locator("[data-part=scrub]").press("ArrowLeft")
    tab.page.locator("#text textarea").fill("stale")
    expect(tab.page.locator("[data-part=stale]")).to_be_visible()
    tab.page.screenshot(path=shots(f"everything-{scheme}.png"), full_page=True)
    assert violations(tab.page) == []
    borders = tab.page.evaluate(BORDERS)  # what axe does not look at: WCAG 1.4.11
    assert len(borders) >= 10 and [one for one in borders if one[1] < 3] == []
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_korean_browser_reads_korean_and_can_switch(korean: BrowserContext, theatre: tuple[Script, str]):
    tab = Tab(korean, theatre[1])
    expect(tab.page.locator("#run")).to_have_text(KO.run)
    expect(tab.page.locator("[data-part=status]")).to_contain_text("준비되었습니다")
    assert tab.page.evaluate("document.documentElement.lang") == "ko"
    tab.page.locator("#text textarea").fill("abcd")
    tab.page.click("#run")
    tab.wait("done")
    tab.page.locator(".round .rejected").first.click()
    assert "모델이 원한 것은" in tab.page.locator(".detail .why").inner_text()
    assert re.search("[a-z]{3,}", tab.page.locator(".numbers").inner_text()) is None
    tab.page.screenshot(path=shots("korean.png"), full_page=True)
    assert violations(tab.page) == []
    tab.choose("English")
    expect(tab.page.locator("#run")).to_have_text(EN.run)
    expect(tab.page.locator("[data-part=status]")).to_contain_text("Done")
    expect(tab.page.locator("#text textarea")).to_have_value("abcd")  # what was written stays
    assert tab.rounds()[0][0] == ["accepted", "a"]
    tab.page.reload()
    tab.wait("idle")
    expect(tab.page.locator("#run")).to_have_text(EN.run)  # and the choice is kept
    tab.page.close()
    assert tab.errors == []


WORDS = ("words.js", "words.ko.js", "words.learn.js", "words.learn.ko.js")


def test_both_languages_say_everything(stage: Callable[..., Tab]):
    sources = [(BROWSER / name).read_text("utf-8") for name in WORDS]
    keys = """(source) => {
        const words = new Function(`${source}; return WORDS`)();
        const tree = (node) => typeof node === "object"
            ? Object.fromEntries(Object.entries(node).sort().map(([key, value]) => [key, tree(value)])) : typeof node;
        return [JSON.stringify(tree(words.en)), JSON.stringify(tree(words.ko))];
    }"""
    english, korean = stage().page.evaluate(keys, "\n".join(sources))
    assert english == korean
    used = {
        *re.findall(r'data-(?:word|empty-word|label-word)="(\w+)"', (BROWSER / "page.html").read_text("utf-8")),
        *(name for path in BROWSER.glob("*.js") for name in re.findall(r"\bwords\.(\w+)", path.read_text("utf-8"))),
    } - {"ko", "js"}
    said = json.loads(english)
    assert used == set(said)
    steps = "".join(path.read_text("utf-8") for path in BROWSER.glob("*.js"))
    assert set(re.findall(r"\bwords\.learn\.(\w+)", steps)) == set(said["learn"])
    for words in (EN, KO):
        assert words.drafters.keys() == EN.drafters.keys() and words.tasks.keys() == EN.tasks.keys()


def test_a_round_is_one_sentence_for_a_screen_reader(stage: Callable[..., Tab], script: Script):
    tab = stage()
    tab.page.evaluate("""() => {
        window.heard = [];
        const live = document.querySelector("[data-part=live]");
        new MutationObserver(() => window.heard.push(live.textContent)).observe(live, { childList: true });
    }""")
    script.gate.clear()
    tab.run("abcdefgh", until=("running",))
    tab.page.wait_for_selector(".round .pending:nth-child(4)")
    script.gate.set()
    tab.wait("done")
    heard = tab.page.evaluate("window.heard")
    assert len(heard) == len(set(heard)) <= 8
    assert heard[-1].endswith("abcdefgh")
    assert tab.page.locator("[data-part=live]").get_attribute("aria-live") == "polite"


@pytest.mark.parametrize(("text", "direction"), [("שלום עולם", "rtl"), ("안녕하세요", "ltr")])
def test_text_runs_in_its_own_direction(stage: Callable[..., Tab], text: str, direction: str):
    tab = stage()
    tab.run(text)
    assert tab.part("text") == text
    shown = tab.page.locator(".mtp .text").last
    assert shown.evaluate("(n) => getComputedStyle(n).direction") == direction
    assert tab.page.locator(".round bdi").first.evaluate("(n) => getComputedStyle(n).unicodeBidi") == "isolate"


def test_twice_the_size_still_fits(stage: Callable[..., Tab]):
    """A 1280 pixel window at 200 % is one of 640."""
    tab = stage(width=640)
    tab.run("A-rather-long-word-in-a-text " * 4)
    tab.page.locator(".round .rejected").first.click()
    assert tab.page.evaluate("document.documentElement.scrollWidth") == 640


# What the Tab key should reach, each with how it and its label look, and what has the focus, likewise.
STOPS = """() => {
    const look = (node) => [node, node.closest("label") ?? node, node.parentElement].map((one) => {
        const { outline, boxShadow, borderColor, backgroundColor } = getComputedStyle(one);
        return [outline, boxShadow, borderColor, backgroundColor].join();
    }).join("|");
    const seen = (node) => node.checkVisibility({ visibilityProperty: true }) && !node.disabled && node.tabIndex >= 0;
    window.stops = [...document.querySelectorAll("button, input, select, textarea, summary, a[href], [tabindex]")]
        .filter((node) => seen(node) && (node.type !== "radio" || node.checked))
        .map((node) => ({ node, look: look(node), reached: false, shown: false }));
    document.addEventListener("focusin", ({ target }) => {
        const stop = window.stops.find(({ node }) => node === target);
        if (stop) Object.assign(stop, { reached: true, shown: look(target) !== stop.look });
    });
    return window.stops.length;
}"""
MISSED = """() => window.stops.filter(({ reached, shown }) => !reached || !shown)
    .map(({ node, reached }) => [reached, node.outerHTML.slice(0, 120)])"""


@pytest.mark.parametrize("part", ["Watch", "Learn"])
def test_every_control_is_reached_by_keyboard_and_seen_to_be(stage: Callable[..., Tab], part: str):
    tab = stage()
    tab.page.add_style_tag(content="*, *::before { transition: none !important; }")
    if part == "Watch":
        tab.page.get_by_label("Text").fill("abcd")
        tab.page.click("#race")
        tab.wait("done")
        tab.page.locator(".round .rejected").first.click()
        tab.page.locator(".legend summary").click()
    else:
        tab.page.get_by_role("tab", name="Learn").click()
        tab.page.locator(".learn .steps button").last.click()
    tab.page.evaluate("document.activeElement.blur()")
    count = tab.page.evaluate(STOPS)
    assert count > 15
    tab.page.evaluate("document.body.tabIndex = -1, document.body.focus()")
    for _ in range(count + 20):  # some are no controls: what scrolls, and the browser itself
        tab.page.keyboard.press("Tab")
    tab.page.wait_for_timeout(200)
    assert tab.page.evaluate(MISSED) == []
