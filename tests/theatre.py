"""The page over a stand-in whose tokens are characters, and tabs that watch it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from time import sleep
from typing import Any, cast

import pytest
from playwright.sync_api import BrowserContext
from tab import Tab, free_port

from mtp_mlx.engine import Engine
from mtp_mlx.events import Done, Draft, Event, Guess, Inspection, Prefilled, Round, Row
from mtp_mlx.pipeline import Pipeline
from mtp_mlx.request import Request
from mtp_mlx.trace import Trace
from mtp_mlx.ui import desk, serve
from mtp_mlx.ui import page as pages

WRONG = sys.maxunicode + 1
PACE = {"passes": {"1": 0.05, "8": 0.1}, "step": 0.01, "chances": [0.75, 0.5]}


@dataclass
class Script:
    """A pipeline that writes what it is asked, and drafts two right characters and ``wrong`` twice.

    Plain decode takes ``plain_seconds`` a token, and ends with ``plain_end`` if there is one.
    """

    wrong: str = "☓"
    warning: str | None = None
    failure: str | None = None
    plain_seconds: float = 0.1
    plain_end: str = ""
    alone: bool = False  # a text is its first character, which comes with the prompt
    bugged: str = ""  # what is written instead where a fault is asked for
    pause: float = 0.0  # what each draft takes, in seconds of the clock on the wall
    gate: threading.Event = field(default_factory=threading.Event)  # closed: a run waits after each draft
    started: threading.Event = field(default_factory=threading.Event)  # a run has the model

    def start(self, request: Request, *, cancelled: Callable[[], bool]) -> Script._Run:
        if request.fault and not request.fixed and self.bugged:
            request = replace(request, text=self.bugged)
        trace = Trace(
            task=request.task,
            drafter=request.drafter,
            width=request.rows,
            draft_length=request.drafts,
            max_tokens=len(request.text),
            input=request.text,
            prompt=[*map(ord, "^say:")],
            pace=PACE if request.draft_length == "auto" else None,
            memory={"profile": "This machine", "budget": None, "entries": {"backbone weights": 1}},
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
            self.script.started.set()
            sleep(self.script.pause)
            yield Prefilled(7, 0.0)
            sleep(self.script.pause)
            if self.script.alone:
                yield Round.first(ord(self.request.text[0]), margin=1.0)
                yield Done("end")
                return
            if self.request.drafter == "plain":
                for one in self.request.text + self.script.plain_end:
                    self.wait()
                    if self.cancelled():
                        yield Done("stopped")
                        return
                    yield Round((), (), 0, ord(one), "plain", 1.0, 0.0, self.script.plain_seconds)
                yield Done("budget")
                return
            for i in range(0, len(self.request.text), 4):
                if self.cancelled():
                    yield Done("stopped")
                    return
                ids = tuple(map(ord, self.request.text[i : i + 4]))
                drafted = (*ids[:2], WRONG, WRONG)
                yield Draft(drafted, (0.5,) * len(drafted))
                self.wait()
                if self.script.failure:
                    raise RuntimeError(self.script.failure)
                yield self.look(ids if len(ids) < 3 else drafted, ids)
                if len(ids) < 3:
                    yield Round(ids, (0.5,) * len(ids), len(ids), None, "end", 1.0, 0.01, 0.1)
                else:
                    yield Round(drafted, (0.5,) * 4, 2, ids[2], "correction", 1.0, 0.01, 0.1)
                if len(ids) == 4:
                    yield Round((), (), 0, ids[3], "plain", 1.0, 0.0, 0.1)
            yield Done("budget")

        def wait(self) -> None:
            sleep(self.script.pause)
            while not self.script.gate.wait(0.05) and not self.cancelled():
                pass

        def look(self, drafted: tuple[int, ...], ids: tuple[int, ...]) -> Inspection:
            """The text's own character is three times as likely as the wrong one."""
            rows = [
                Row(((right, 0.75), (WRONG, 0.25)), 1.5, 1 if right == one else 2, 0.75 if right == one else 0.25)
                for one, right in zip(drafted, (*ids[:3], WRONG, WRONG), strict=False)
            ]
            looked = (((0, 0.5), (1, 0.1), (2, 0.4)), ((3, 1.0),))
            return Inspection(
                tuple(Guess(((one, 0.5),), looked) for one in drafted), (*rows, Row(rows[-1].top, 0.5, None, None))
            )


@cache
def opened(config: pytest.Config) -> tuple[Script, str]:
    """A script and the address where it is played until the tests are over; files that need one share it."""
    script = Script()
    engine = Engine(lambda *_: cast(Pipeline, script))
    blocks = pages.build(engine, has_head=True)

    def close() -> None:
        blocks.close(verbose=False)
        engine.close()

    config.add_cleanup(close)
    return script, serve.launch(blocks, "127.0.0.1", free_port())


@pytest.fixture(scope="module")
def theatre(pytestconfig: pytest.Config) -> tuple[Script, str]:
    """A script and the address where it is played."""
    return opened(pytestconfig)


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
        tab.close()
        assert tab.errors == [] and tab.dialogs == []


@pytest.fixture
def losing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """The first news that has this is lost on its way to the browser."""

    def lose(name: str) -> None:
        tell, lost = desk.Desk._run, []

        def told(*args: Any, **options: Any) -> Generator[dict, None, Any]:
            all = tell(*args, **options)
            while True:
                try:
                    news = next(all)
                except StopIteration as end:
                    return end.value
                if lost or not news.get(name):
                    yield news
                else:
                    lost.append(news)

        monkeypatch.setattr(desk.Desk, "_run", told)

    return lose
