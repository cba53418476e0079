"""The page over a stand-in whose tokens are characters: what it shows of any text, any order of events, any screen."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from playwright.sync_api import BrowserContext
from tab import END, Tab, free_port, needs_browser, shots

from mtp_mlx.engine import Engine
from mtp_mlx.events import Done, Draft, Event, Prefilled, Round
from mtp_mlx.pipeline import Pipeline
from mtp_mlx.request import Request
from mtp_mlx.trace import Trace
from mtp_mlx.ui import page as pages
from mtp_mlx.ui import serve

pytestmark = needs_browser

WRONG = sys.maxunicode + 1


@dataclass
class Script:
    """A pipeline that writes what it is asked, and drafts two right characters and ``wrong`` twice."""

    wrong: str = "☓"
    warning: str | None = None
    failure: str | None = None
    gate: threading.Event = field(default_factory=threading.Event)  # closed: a run waits after each draft

    def start(self, request: Request, *, cancelled: Callable[[], bool]) -> Script._Run:
        trace = Trace(
            task=request.task,
            drafter=request.drafter,
            width=request.width,
            draft_length=request.draft_length or 0,
            max_tokens=len(request.text),
            decode=lambda ids: "".join(self.wrong if i == WRONG else chr(i) for i in ids),
            eos=frozenset(),
        )
        return Script._Run(self, request, trace, cancelled)

    @dataclass
    class _Run:
        script: Script
        request: Request
        trace: Trace
        cancelled: Callable[[], bool]

        def __iter__(self) -> Iterator[tuple[Event, str]]:
            for event in self.events():
                if self.script.warning:
                    self.trace.warn("test", self.script.warning)
                yield event, self.trace.add(event)

        def events(self) -> Iterator[Event]:
            yield Prefilled(7, 0.0)
            for i in range(0, len(self.request.text), 4):
                if self.cancelled():
                    yield Done("stopped")
                    return
                ids = tuple(map(ord, self.request.text[i : i + 4]))
                drafted = (*ids[:2], WRONG, WRONG)
                yield Draft(drafted, (0.5,) * len(drafted))
                while not self.script.gate.wait(0.05) and not self.cancelled():
                    pass
                if self.script.failure:
                    raise RuntimeError(self.script.failure)
                if len(ids) < 3:
                    yield Round(ids, (), len(ids), None, "end", 1.0, 0.01, 0.1)
                else:
                    yield Round(drafted, (), 2, ids[2], "correction", 1.0, 0.01, 0.1)
                if len(ids) == 4:
                    yield Round((), (), 0, ids[3], "plain", 1.0, 0.0, 0.1)
            yield Done("budget")


@pytest.fixture(scope="module")
def theatre() -> Iterator[tuple[Script, str]]:
    """A script and the address where it is played."""
    script = Script()
    engine = Engine(lambda _: cast(Pipeline, script))
    blocks = pages.build(engine, has_head=True)
    yield script, serve.launch(blocks, "127.0.0.1", free_port())
    blocks.close(verbose=False)
    engine.close()


@pytest.fixture
def script(theatre: tuple[Script, str]) -> Iterator[Script]:
    script, _ = theatre
    vars(script).update(vars(Script()))
    script.gate.set()
    yield script
    script.gate.set()


@pytest.fixture
def stage(script: Script, theatre: tuple[Script, str], browser: BrowserContext) -> Iterator[Callable[..., Tab]]:
    """Opens tabs over the script."""
    tabs: list[Tab] = []

    def open_tab(**options: Any) -> Tab:
        tabs.append(Tab(browser, theatre[1], **options))
        return tabs[-1]

    yield open_tab
    for tab in tabs:
        tab.page.close()
        assert tab.errors == [] and tab.dialogs == []


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


def test_a_second_run_takes_the_place_of_the_first(stage: Callable[..., Tab], script: Script):
    script.gate.clear()
    tab = stage()
    first = tab.run("a first text", until=("running",))
    tab.run("the second", until=("starting", "queued", "running"))
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
    assert chip.evaluate(style) == ["solid", border, "rgb(26, 26, 26)", "none"]
    tab.page.screenshot(path=shots(f"narrow-{scheme}.png"), full_page=True)


@pytest.mark.parametrize(("has_head", "drafter"), [(True, "mtp"), (False, "lookup")])
def test_without_a_head_prompt_lookup_drafts_and_the_page_says_so(has_head: bool, drafter: str):
    engine = Engine(lambda _: cast(Pipeline, Script()))
    blocks = pages.build(engine, has_head=has_head)
    engine.close()
    radio = next(block for block in blocks.blocks.values() if getattr(block, "label", "") == "Drafter")
    config = radio.get_config()
    assert config["value"] == drafter
    assert (config["info"] == pages.NO_HEAD) is not has_head
