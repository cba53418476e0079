"""A run that goes on and on: what a round costs the browser does not grow with the text, and nobody is turned away."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import expect
from tab import Tab, needs_browser
from theatre import Script, script, stage, theatre

pytestmark = needs_browser
__all__ = ["script", "stage", "theatre"]  # fixtures

# Counts, for each round that is drawn, the nodes that come and go and the characters that are set.
METER = """() => {
    const root = document.querySelector(".mtp");
    const rows = (window.rows = []);
    const size = (records) => records.reduce((sum, { type, addedNodes, removedNodes, target, oldValue }) => sum + (
        type === "characterData" ? Math.abs(target.data.length - oldValue.length)
        : type === "attributes" ? (target.getAttribute("d") ?? "").length
        : [...addedNodes, ...removedNodes].reduce((all, node) =>
            all + (node.data?.length ?? 1 + node.querySelectorAll("*").length), 0)
    ), 0);
    new MutationObserver((records) => rows.push([root.trace.rounds?.length ?? 0, size(records)])).observe(root, {
        subtree: true, childList: true, characterData: true, characterDataOldValue: true,
        attributes: true, attributeFilter: ["d"],
    });
}"""
ROUNDS = 1200


def test_a_round_costs_the_same_however_long_the_text_is(stage: Callable[..., Tab], script: Script):
    """In bytes that are sent, and in nodes and characters that are drawn anew."""
    tab = stage()
    sent: list[int] = []
    network = tab.page.context.new_cdp_session(tab.page)
    network.on("Network.dataReceived", lambda event: sent.append(event["dataLength"]))
    network.send("Network.enable")
    tab.page.evaluate(METER)
    script.pause = 0.002
    trace = tab.run("abcd" * (ROUNDS // 2))
    assert (trace["status"], len(trace["rounds"])) == ("done", ROUNDS)
    assert sum(sent) / ROUNDS < 2500  # a drafted round is 1.7 kB here
    rows = tab.page.evaluate("window.rows")
    work = {part: [size for at, size in rows if part * 300 < at <= (part + 1) * 300] for part in range(4)}
    spent = [sum(sizes) / 300 for sizes in work.values()]  # of each stretch of 300 rounds
    assert spent[0] > 0
    # The two shapes of the timeline grow to 400 blocks each, 26 characters a block, for each piece of news.
    pieces = [len(sizes) / 300 for sizes in work.values()]
    assert all(one <= 2 * spent[0] + 2 * 400 * 30 * n for one, n in zip(spent[1:], pieces[1:], strict=True)), spent
    assert tab.page.locator(".round").count() <= 100
    blocks = tab.page.locator("[data-part=verifying]").get_attribute("d") or ""
    assert 300 <= blocks.count("M") <= 400
    assert "One block for each 3 passes" in tab.part("timelineHelp")


def test_what_is_selected_stays_selected_as_the_text_grows(stage: Callable[..., Tab], script: Script):
    script.gate.clear()
    tab = stage()
    tab.run("abcd" * 3, until=("running",))
    script.gate.set()
    tab.page.wait_for_function("document.querySelector('[data-part=text]').textContent.length >= 3")
    script.gate.clear()
    tab.page.evaluate("getSelection().selectAllChildren(document.querySelector('[data-part=text]'))")
    begun = tab.page.evaluate("getSelection().toString()")
    script.gate.set()
    tab.wait("done")
    assert begun and tab.page.evaluate("getSelection().toString()").startswith(begun)


def test_the_page_does_not_turn_under_whoever_looks_at_a_token(stage: Callable[..., Tab], script: Script):
    script.gate.clear()
    tab = stage()
    tab.run("abcd" * 60, until=("running",))
    chip = tab.page.locator(".round").first.locator(".token").nth(1)
    chip.click()
    script.gate.set()
    assert len(tab.wait("done")["rounds"]) == 120
    expect(chip).to_be_focused()
    expect(tab.page.locator(".detail")).to_have_count(1)
    assert tab.page.locator(".round").count() == 100 and tab.part("page") == "Passes 1 to 100"
    tab.page.keyboard.press("ArrowLeft")
    assert "The head wrote a" in tab.page.locator(".detail .why").inner_text()
    tab.page.get_by_label("Text").focus()  # whoever leaves gets the newest passes
    expect(tab.page.locator("[data-part=page]")).to_have_text("Passes 101 to 120")


def test_the_focus_does_not_fall_off_what_is_drawn_anew(stage: Callable[..., Tab], script: Script):
    script.gate.clear()
    tab = stage()
    tab.run("abcd", until=("running",))
    pending = tab.page.locator(".round .pending")
    pending.nth(3).click()
    tab.page.get_by_role("button", name="Close", exact=True).focus()
    script.gate.set()
    tab.wait("done")
    expect(tab.page.get_by_role("button", name="Close", exact=True)).to_be_focused()
    tab.page.keyboard.press("Enter")
    expect(tab.page.locator(".round .unread")).to_be_focused()
    # A draft that is stopped before it is judged goes; the focus does not go with it to nowhere.
    script.gate.clear()
    tab.run("efgh", until=("running",))
    pending.nth(3).focus()
    tab.page.evaluate("document.querySelector('#stop').click()")
    tab.wait("stopped", "done")
    assert tab.page.evaluate("document.activeElement !== document.body")


def test_nothing_plays_by_itself_where_motion_is_reduced(stage: Callable[..., Tab]):
    tab = stage(reduced_motion="reduce")
    tab.page.get_by_role("button", name="Watch", exact=True).click()
    expect(tab.page.locator("[data-part=origin]")).to_be_visible()
    expect(tab.page.get_by_role("button", name="Play", exact=True).first).to_be_visible()
    assert tab.page.locator("[data-part=scrub]").evaluate("(s) => s.value === s.max")
    tab.page.get_by_label("Text").fill("abcd")
    tab.page.click("#race")
    tab.wait("done")
    assert tab.page.locator(".lanes .text").all_inner_texts() == ["abcd", "abcd"]
    moving = """() => document.getAnimations().filter((one) => one.effect.target.closest(".mtp")).length"""
    assert tab.page.evaluate(moving) == 0


def test_drafts_come_in_one_by_one_where_it_is_not(stage: Callable[..., Tab], script: Script):
    script.gate.clear()
    tab = stage()
    tab.run("abcd", until=("running",))
    tab.page.wait_for_selector(".round .pending:nth-child(4)")
    style = "(n) => { const s = getComputedStyle(n); return [s.animationName, s.animationDelay]; }"
    assert [chip.evaluate(style) for chip in tab.page.locator(".pending").all() if chip.is_visible()][:2] == [
        ["mtp-come", "0s"],
        ["mtp-come", "0.06s"],
    ]
