"""The page in one tab of a real Chromium, as the tests of the page and of app.py see it."""

from __future__ import annotations

import socket
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page

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
PLAIN = {"color_scheme": "light", "reduced_motion": "no-preference"}
PARKED: defaultdict[BrowserContext, list[Page]] = defaultdict(list)  # left and empty: a new one takes 1.6 times as long
FORGET = """() => {
    Storage.prototype.setItem = () => {};
    for (const storage of [sessionStorage, localStorage]) storage.clear();
}"""

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason=f"none of {', '.join(BROWSERS)}")


class Tab:
    """The page in one browser tab: one that an earlier test closed, or a new one."""

    def __init__(self, browser: BrowserContext, address: str, width: int = 1200, **media: Any):
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        self.errors: list[str] = []
        self.page: Page = PARKED[browser].pop() if PARKED[browser] else browser.new_page()
        self.page.bring_to_front()  # as a new one is
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.emulate_media(**PLAIN | media)
        self.page.set_default_timeout(SECONDS)
        self._listeners: dict[Any, Callable[[Any], Any]] = {
            "request": lambda request: self.requests.append(request.url),
            "pageerror": lambda error: self.errors.append(str(error)),
            "dialog": lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()),
        }
        for event, listener in self._listeners.items():
            self.page.on(event, listener)
        self.page.goto(address)
        self.wait("idle")

    def close(self) -> None:
        """Leave the page, which ends it as closing does, and what it stored; the empty tab is for the next test."""
        if self.page.is_closed():
            return
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)
        self.page.evaluate(FORGET)
        self.page.goto("about:blank")
        PARKED[self.page.context].append(self.page)

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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def shots(name: str) -> Path:
    """Where to keep a picture for people to look at."""
    folder = ROOT / "test-results"
    folder.mkdir(exist_ok=True)
    return folder / name
