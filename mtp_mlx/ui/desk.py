"""What each browser tab asks for, on its way to the engine, and what becomes of it on its way back."""

from __future__ import annotations

import itertools
import json
import secrets
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr

from mtp_mlx.engine import Engine, Job
from mtp_mlx.request import DRAFT_LENGTH, WIDTH, Request
from mtp_mlx.ui.news import Fresh

EMPTY = "the text is empty: write something first"
KEPT = 4  # runs, the last that began, that can be told whole to a browser that missed something


@dataclass(frozen=True)
class Form:
    """What a person filled in, and how it is to be run.

    Attributes:
        auto: as many drafts as pay, instead of ``draft_length``.
        width: None for the usual one or one that pays.
        fault: the bug to run with, if any; ``fixed``: the same without it.
    """

    task: str
    text: str
    drafter: str
    draft_length: int
    auto: bool
    profile: str
    width: int | None = None
    fault: str | None = None
    fixed: bool = False

    def request(self) -> Request:
        length = "auto" if self.auto and self.drafter != "plain" else int(self.draft_length)
        options = {"draft_length": length, "width": self.width, "profile": self.profile}
        faults = {"fault": self.fault, "fixed": self.fixed}
        return Request(self.task, self.text, drafter=self.drafter, **options, **faults, inspect=self.fault is None)


@dataclass(frozen=True)
class Run:
    """A run of a tab; ``name``: what its news is known by."""

    job: Job
    name: dict[str, Any]


class Desk:
    """Takes what each browser tab asks for to the engine: one run a tab, the newest."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._jobs: dict[str | None, Job] = {}
        self._told: dict[str, Fresh] = {}  # by the run's key
        self._lock = threading.Lock()
        self._numbers = itertools.count(time.time_ns() // 1_000_000)  # a restarted server goes on above the last one

    def run(
        self, task: str, text: str, drafter: str, draft_length: int, auto: bool, profile: str, request: gr.Request
    ) -> Iterator[str]:
        """What becomes of a request, each piece of news as JSON text; see ``_run``."""
        yield from map(as_text, self._run(Form(task, text, drafter, draft_length, auto, profile), request))

    def race(
        self, task: str, text: str, drafter: str, draft_length: int, auto: bool, profile: str, request: gr.Request
    ) -> Iterator[str]:
        """What becomes of a race, likewise; see ``_lanes``."""
        # In passes of the usual width: between two widths near-ties may fall otherwise.
        form = Form(task, text, drafter, draft_length, auto, profile, width=WIDTH)
        yield from map(as_text, self._lanes((replace(form, drafter="plain"), form), request))

    def fault(
        self,
        task: str,
        text: str,
        drafter: str,
        draft_length: int,
        auto: bool,
        profile: str,
        asked: gr.EventData,
        request: gr.Request,
    ) -> Iterator[str]:
        """What becomes of a text with a famous bug: first run without it, then with it; see ``_lanes``.

        Drafts are of one length: with ``auto`` the two could differ by what was measured, and not by the bug.
        """
        length = DRAFT_LENGTH if auto else draft_length
        form = Form(task, text, drafter, length, False, profile, width=WIDTH, fault=asked.fault)
        yield from map(as_text, self._lanes((replace(form, fixed=True), form), request))

    def whole(self, key: str) -> str:
        """All that is known of a run, for a browser that missed some of it; ``null`` where it is forgotten.

        Args:
            key: the run's own, which its news are under and nobody else is told.
        """
        told = self._told.get(key)
        return as_text(told and told.last)

    def _run(
        self,
        form: Form,
        request: gr.Request,
        *,
        after: Run | None = None,
        lane: dict[str, Any] | None = None,
        ends: bool = True,
    ) -> Generator[dict[str, Any], None, Run | None]:
        """What becomes of a request: everything that the engine says of it, under the run's own number and key.

        Of two runs of a tab the one with the higher number stands, in whatever order their clicks or news arrive.

        Args:
            after: the run that this one goes on with; if that was stopped, or another has taken its place, so is this.
            lane: what all news of it has besides.
            ends: whether it is over when it is done; otherwise it is told to run until another one goes on with it.

        Returns:
            The run, if it was done.
        """
        job: Job | None = None
        fresh = Fresh()
        with self._lock:
            stands = after is None or self._jobs.get(request.session_hash) is after.job
            if stands:
                self._cancel(request)
                name = {"run": next(self._numbers), "key": secrets.token_hex(8)} | (lane or {})
                if form.text.strip():
                    job = self._jobs[request.session_hash] = self._engine.submit(form.request())
            else:
                assert after
                name = after.name
        if job is None:
            yield ({"status": "failed", "message": EMPTY} if stands else {"status": "stopped"}) | name
            return None
        done: Run | None = None
        try:
            yield {"status": "starting"} | name
            beats = itertools.count()  # a browser knows by them whether it missed anything, and that somebody is there
            for news in self._engine.follow(job):
                if news["status"] == "queued" and job.cancelled.is_set():
                    yield {"status": "stopped"} | name
                    break
                if not job.said.empty():  # the browser is behind, and gets the newer one
                    continue
                if fresh.last is None and "rounds" in news:
                    self._remember(name["key"], fresh)
                over = news["status"] == "done"
                told = fresh(news) | name | {"beat": next(beats)}
                yield told | {"status": "running"} if over and not ends else told
                if over:
                    done = Run(job, name)
        finally:
            if ends or not done:
                self._end(request, job)
        return done

    def _lanes(self, forms: tuple[Form, Form], request: gr.Request) -> Iterator[dict[str, Any]]:
        """Two runs, one after the other, the second only if the first was done; ``lane`` says which one it is.

        They are over when the second one is: until then the first one still runs, as far as a browser knows.
        """
        first, second = forms
        fault = {} if first.fault is None else {"fault": first.fault}
        done = yield from self._run(first, request, lane={"lane": 1} | fault, ends=False)
        if done:
            yield from self._run(second, request, after=done, lane={"lane": 2} | fault)

    def _remember(self, key: str, fresh: Fresh) -> None:
        with self._lock:
            self._told[key] = fresh
            for old in [*self._told][:-KEPT]:
                del self._told[old]

    def _end(self, request: gr.Request, job: Job) -> None:
        """A run is over, or nobody listens any more; its tab may never come again."""
        job.cancelled.set()
        with self._lock:
            if self._jobs.get(request.session_hash) is job:
                del self._jobs[request.session_hash]

    def stop(self, request: gr.Request) -> None:
        """Stop the run of a tab, if it has one; it frees the model within a round."""
        with self._lock:
            self._cancel(request)

    def _cancel(self, request: gr.Request) -> None:
        if job := self._jobs.pop(request.session_hash, None):
            job.cancelled.set()


def as_text(news: Any) -> str:
    """As JSON text without ``<``, at which Gradio takes a user's words for markup and warns."""
    return json.dumps(news).replace("<", "\\u003c")
