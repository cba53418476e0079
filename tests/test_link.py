"""The server gone and back, another one in its place, a dead network: the page says so, and goes on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import cast

import pytest
from cut import Line
from playwright.sync_api import BrowserContext, Locator, expect
from tab import Tab, free_port, needs_browser
from theatre import Script, losing, script, stage, theatre

from mtp_mlx.engine import Engine
from mtp_mlx.pipeline import Pipeline
from mtp_mlx.ui import desk, serve
from mtp_mlx.ui import page as pages

pytestmark = needs_browser
__all__ = ["losing", "script", "stage", "theatre"]  # fixtures
LOST = "The server does not answer."
AGAIN = "a run that was lost has to be started again"
ENDED = "that run is over. Your text is still here"


def port_of(address: str) -> int:
    return int(address.rstrip("/").rpartition(":")[2])


@pytest.fixture
def line(theatre: tuple[Script, str], script: Script) -> Iterator[Line]:
    line = Line(port_of(theatre[1]))
    yield line
    line.thaw()
    line.cut()


@pytest.fixture
def tab(line: Line, browser: BrowserContext) -> Iterator[Tab]:
    tab = Tab(browser, f"http://127.0.0.1:{line.port}/")
    yield tab
    tab.page.close()
    assert tab.dialogs == []


@pytest.fixture
def another() -> Iterator[int]:
    """The port of a server that was started later."""
    engine = Engine(lambda *_: cast(Pipeline, Script(gate=opened())))
    blocks = pages.build(engine, has_head=True)
    yield port_of(serve.launch(blocks, "127.0.0.1", free_port()))
    blocks.close(verbose=False)
    engine.close()


def opened():
    script = Script()
    script.gate.set()
    return script.gate


def status(tab: Tab):
    return tab.page.locator("[data-part=status]")


def test_a_server_that_is_restarted_during_a_run_is_missed_and_found_again(
    tab: Tab, line: Line, script: Script, another: int
):
    script.gate.clear()
    tab.run("my own text", until=("running",))
    line.cut()
    expect(status(tab)).to_contain_text(LOST)
    assert LOST in tab.part("live") and AGAIN in tab.part("status")
    for button in ("#run", "#stop", "#race"):
        expect(tab.page.locator(button)).to_be_disabled()
    line.mend(another)
    expect(status(tab)).to_contain_text(ENDED)  # by itself
    expect(tab.page.get_by_label("Text")).to_have_value("my own text")
    assert tab.run()["text"] == "my own text"
    tab.page.reload()
    expect(status(tab)).to_contain_text("Ready.")  # and it is said once


def test_a_server_that_is_restarted_while_nothing_runs_is_not_missed(
    tab: Tab, line: Line, script: Script, another: int
):
    assert tab.run("abcd")["status"] == "done"
    line.cut()
    line.mend(another)
    assert tab.run("abcde")["text"] == "abcde"


def test_a_run_that_nobody_takes_says_so(tab: Tab, line: Line, script: Script):
    line.cut()
    tab.page.get_by_label("Text").fill("abcd")
    tab.page.click("#run")
    expect(status(tab)).to_contain_text(LOST)
    line.mend()
    expect(status(tab)).to_contain_text(ENDED)
    assert tab.run()["text"] == "abcd"


def test_a_bug_that_nobody_runs_says_so(tab: Tab, line: Line, script: Script):
    def lab() -> Locator:
        tab.page.locator("[role=tab]").nth(1).click()
        tab.page.locator(".learn .steps button").last.click()
        return tab.page.locator(".trial").first

    trial = lab()
    line.cut()
    trial.get_by_role("button").click()
    expect(trial.locator(".result")).to_have_text(re.compile(LOST))
    expect(tab.page.locator(".trial").nth(1).locator(".result")).to_be_hidden()
    line.mend()
    expect(status(tab)).to_contain_text(ENDED)
    trial = lab()
    trial.get_by_role("button").click()
    expect(trial.locator(".result")).to_contain_text("On this text the fault")


@pytest.mark.slow  # the page waits long before it calls a silent network dead
def test_a_dead_network_that_comes_back_loses_nothing(tab: Tab, line: Line, script: Script):
    """A closed laptop: no connection ends."""
    script.gate.clear()
    tab.run("abcdefgh", until=("running",))
    tab.page.evaluate("window.same = true")
    line.freeze()
    expect(status(tab)).to_contain_text(LOST)
    script.gate.set()
    line.thaw()
    assert tab.wait("done")["text"] == "abcdefgh"
    expect(status(tab)).to_contain_text("Done")
    expect(tab.page.locator("#run")).to_be_enabled()
    assert tab.page.evaluate("window.same")  # the page was not loaded anew


@pytest.mark.slow  # ten seconds of waiting
def test_a_run_that_takes_long_is_not_taken_for_a_dead_one(tab: Tab, line: Line, script: Script):
    script.gate.clear()
    tab.run("abcd", until=("running",))
    tab.page.evaluate("""() => {
        window.said = [];
        const status = document.querySelector("[data-part=status]");
        new MutationObserver(() => window.said.push(status.textContent)).observe(status, { childList: true });
    }""")
    tab.page.wait_for_timeout(10_000)
    assert tab.page.evaluate("window.said") == []
    assert not [url for url in tab.requests if "app_id" in url]  # nor is the server asked: there is news
    script.gate.set()
    tab.wait("done")


@pytest.mark.parametrize("name", ["rounds", "input", "prompt_tokens"])
def test_news_that_is_lost_is_asked_for(
    stage: Callable[..., Tab], script: Script, losing: Callable[[str], None], name: str
):
    losing(name)
    script.pause = 0.05
    trace = stage().run("abcdefgh" * 4)
    assert (trace["status"], trace["text"], len(trace["rounds"])) == ("done", "abcdefgh" * 4, 16)
    assert trace["token_ids"] == [*b"abcdefgh" * 4] and trace["input"] == trace["text"]
    assert trace["prompt_tokens"] == 7
    assert all(len(round["rows"]) == len(round["drafted"]) + 1 for round in trace["rounds"][::2])


def test_news_that_is_lost_for_good_fails_in_a_line(
    stage: Callable[..., Tab], script: Script, losing: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
):
    losing("rounds")
    monkeypatch.setattr(desk.Desk, "whole", lambda self, key: "null")
    script.pause = 0.05
    tab = stage()
    assert tab.run("abcdefgh" * 4)["status"] == "failed"
    assert "a part of this run was lost on its way here: run it again" in tab.part("status")
    monkeypatch.undo()
    assert tab.run("abcd")["status"] == "done"
