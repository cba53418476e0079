"""The page in a real Chromium: over the shipped model, and over a stand-in that says what a test wants to see."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from playwright.sync_api import BrowserContext, Page, expect, sync_playwright

from mtp_mlx import weights
from mtp_mlx.engine import Engine
from mtp_mlx.events import Done, Draft, Event, Prefilled, Round
from mtp_mlx.pipeline import Pipeline
from mtp_mlx.request import Request
from mtp_mlx.tasks import PROOFREAD, SUMMARIZE
from mtp_mlx.trace import Trace
from mtp_mlx.ui import page as pages
from mtp_mlx.ui import serve

ROOT = Path(__file__).parent.parent
BROWSERS = [
    *("/usr/bin/chromium", "/usr/bin/google-chrome"),
    *(
        "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
        "/Applications/Chromium.app/Contents/MacOS/Chromium",
    ),
]
CHROMIUM = next((path for path in BROWSERS if Path(path).exists()), None)
QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run"),
)
SECONDS = 60_000  # patience with a busy machine, in milliseconds
END = ("done", "stopped", "failed")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=f"none of {', '.join(BROWSERS)}")


class Tab:
    """The page in one browser tab."""

    def __init__(self, browser: BrowserContext, address: str, width: int = 1200, **media: Any):
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        self.errors: list[str] = []
        self.page: Page = browser.new_page()
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.emulate_media(**media)
        self.page.set_default_timeout(SECONDS)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))
        self.page.goto(address)
        self.wait("idle")

    def wait(self, *statuses: str, but: str | None = None) -> dict[str, Any]:
        """The trace, once its status is one of these and it is not of the run ``but``."""
        script = """([statuses, but]) => {
            const trace = document.querySelector(".mtp")?.trace;
            return trace && statuses.includes(trace.status) && (!but || trace.run !== but) ? trace : null;
        }"""
        return self.page.wait_for_function(script, arg=[statuses, but]).json_value()

    def run(self, text: str | None = None, *, until: tuple[str, ...] = END) -> dict[str, Any]:
        before = self.page.evaluate("document.querySelector('.mtp').trace.run")
        if text is not None:
            self.page.get_by_label("Text").fill(text)
        self.page.click("#run")
        return self.wait(*until, but=before or "none")

    def choose(self, label: str) -> None:
        self.page.get_by_label(label, exact=True).check()

    def part(self, name: str) -> str:
        """What a part of the trace shows."""
        return self.page.locator(f"[data-part={name}]").text_content() or ""

    def rounds(self) -> list[list[tuple[str, str]]]:
        """What each pass shows: (state, text) of every token."""
        return self.page.evaluate("""() => [...document.querySelectorAll(".round")].map((round) =>
            [...round.querySelectorAll(".token")].map((t) => [t.dataset.state, t.querySelector("bdi").textContent])
        )""")


@pytest.fixture(scope="module")
def browser() -> Iterator[BrowserContext]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser.new_context()
        browser.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass
class App:
    """``app.py`` in a process of its own, and a proxy that nothing should ask for anything."""

    process: subprocess.Popen[str]
    address: str
    proxy: socket.socket

    def asked_outside(self) -> bool:
        self.proxy.setblocking(False)
        try:
            self.proxy.accept()
        except BlockingIOError:
            return False
        return True


def start(port: int, **environment: str) -> tuple[subprocess.Popen[str], str]:
    """Start app.py; wait for the line that says where it is."""
    process = subprocess.Popen(
        [sys.executable, "app.py", "--port", str(port)],
        cwd=ROOT,
        env={"OPENBLAS_NUM_THREADS": "1"} | os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert f"http://127.0.0.1:{port}/" in line
    return process, f"http://127.0.0.1:{port}/"


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
        url = "http://{}:{}".format(*proxy.getsockname())
        environment = dict.fromkeys(names, url) | {"NO_PROXY": "", "no_proxy": ""}
        process, address = start(free_port(), **environment)
        yield App(process, address, proxy)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


@pytest.fixture
def tab(browser: BrowserContext, app: App) -> Iterator[Tab]:
    tab = Tab(browser, app.address)
    tab.choose("Prompt lookup")
    yield tab
    tab.page.close()
    assert tab.errors == []


# Over the shipped model


def test_loading_and_running_ask_nothing_of_the_world(browser: BrowserContext, app: App):
    tab = Tab(browser, app.address)
    tab.page.get_by_role("spinbutton").fill("5")
    trace = tab.run(PROOFREAD.examples[3])
    assert (trace["status"], trace["draft_length"]) == ("done", 5)
    assert trace["drafter"] == ("mtp" if weights.HEAD.is_dir() else "lookup")
    tab.page.screenshot(path=shots("page.png"), full_page=True)  # the picture in the README
    tab.page.close()
    assert tab.requests and all(url.startswith((app.address, "data:", "blob:")) for url in tab.requests)
    assert not app.asked_outside()


def test_a_run_shows_every_token_with_its_state(tab: Tab):
    tab.page.evaluate("""() => {
        window.changes = [];
        new MutationObserver((records) => records.forEach(({ oldValue, target }) =>
            oldValue && window.changes.push(`${oldValue} ${target.dataset.state}`)
        )).observe(document.querySelector(".rounds"),
            { subtree: true, attributes: true, attributeOldValue: true, attributeFilter: ["data-state"] });
    }""")
    trace = tab.run(PROOFREAD.examples[0])
    assert trace["status"] == "done" and trace["finish"] == "end"
    assert "yesterday and bought three apples." in trace["text"]

    shown = tab.rounds()
    assert len(shown) == len(trace["rounds"])
    for tokens, round in zip(shown, trace["rounds"], strict=True):
        states = [state for state, _ in tokens]
        assert states[: round["accepted"]] == ["accepted"] * round["accepted"]
        if round["kind"] == "correction":
            assert states[round["accepted"]] == "rejected"
        assert states.count("accepted") == round["accepted"]
        assert states[-1] == (round["kind"] if round["token"] else states[-1])
    flat = [state for tokens in shown for state, _ in tokens]
    assert {"accepted", "rejected", "unread", "correction"} <= set(flat) and "pending" not in flat
    assert {"pending accepted", "pending rejected", "pending unread"} <= set(tab.page.evaluate("window.changes"))

    kept = "".join(text for tokens in shown for state, text in tokens if state not in ("rejected", "unread"))
    assert kept.replace("·", " ").removesuffix("<|im_end|>") == trace["text"] == tab.part("text")


def test_the_numbers_are_the_tokens_counted(tab: Tab):
    trace = tab.run(PROOFREAD.examples[3])
    flat = [state for tokens in tab.rounds() for state, _ in tokens]
    passes, accepted = len(tab.rounds()), flat.count("accepted")
    drafted = accepted + flat.count("rejected") + flat.count("unread")
    assert tab.part("passes") == str(passes)
    assert tab.part("additional") == f"{accepted / passes:.2f}"
    assert tab.part("acceptance") == f"{100 * accepted / drafted:.0f} %"
    assert tab.part("saved") == str(len(trace["token_ids"]) - passes)
    assert float(tab.part("speed")) == pytest.approx(trace["stats"]["tokens_per_second"], abs=0.051)


def test_a_summary_by_plain_decode_guesses_nothing(tab: Tab):
    tab.choose("None (plain)")
    tab.page.get_by_role("button", name="Jane: Running 10 min late").click()
    expect(tab.page.get_by_label("Text")).to_have_value(SUMMARIZE.examples[3])
    expect(tab.page.get_by_label(SUMMARIZE.title)).to_be_checked()
    trace = tab.run()
    assert trace["task"] == "summarize" and trace["text"]
    assert {state for tokens in tab.rounds() for state, _ in tokens} == {"plain"}
    assert (tab.part("additional"), tab.part("saved"), tab.part("acceptance")) == ("0.00", "0", "–")


@pytest.mark.parametrize(
    ("text", "message"), [("", "the text is empty"), (" \n ", "the text is empty"), ("word " * 10_000, "shorten")]
)
def test_text_that_cannot_be_worked_on(tab: Tab, text: str, message: str):
    assert tab.run(text)["status"] == "failed"
    assert message in tab.part("status") and message in tab.part("live")
    assert tab.rounds() == []


def test_stop_keeps_the_text_so_far_and_frees_the_model(tab: Tab):
    tab.choose("None (plain)")
    tab.run(PROOFREAD.examples[2], until=("running",))
    tab.page.wait_for_selector(".round:nth-child(3)")
    tab.page.click("#stop")
    trace = tab.wait(*END)
    assert trace["status"] == "stopped" and "so far" in tab.part("status")
    assert 0 < trace["stats"]["tokens"] < trace["max_tokens"]
    assert tab.part("text") == trace["text"] != ""
    assert tab.run(PROOFREAD.examples[0])["status"] == "done"


def test_two_tabs_queue_and_both_finish(tab: Tab, browser: BrowserContext, app: App):
    other = Tab(browser, app.address)
    tab.choose("None (plain)")
    tab.run(PROOFREAD.examples[2], until=("running",))
    assert other.run(until=("queued",))["place"] == 1
    assert "one run is ahead" in other.part("status")
    assert tab.wait(*END)["status"] == other.wait(*END)["status"] == "done"
    other.page.close()


def test_a_port_in_use_is_one_line_and_a_failure(app: App):
    port = app.address.rstrip("/").rpartition(":")[2]
    result = subprocess.run([sys.executable, "app.py", "--port", port], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 1
    assert re.fullmatch(rf"cannot open http://127.0.0.1:{port}: .*in use.*\n", result.stderr) and result.stdout == ""


def test_ctrl_c_ends_it_at_once_whatever_it_does(browser: BrowserContext):
    process, address = start(free_port())
    tab = Tab(browser, address)
    tab.run(until=("loading", "running"))
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20) == ("", None) and process.returncode == 0
    tab.page.close()


# Over a stand-in whose tokens are characters, and one that is any text

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


def test_news_of_a_run_that_was_replaced_is_not_shown(stage: Callable[..., Tab]):
    tab = stage()
    tab.run("first")
    number = tab.page.evaluate("document.querySelector('.mtp').trace.run")
    assert tab.run("second")["run"] > number
    assert tab.part("text") == "second"


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


def shots(name: str) -> Path:
    """Where to keep a picture for people to look at."""
    folder = ROOT / "test-results"
    folder.mkdir(exist_ok=True)
    return folder / name
