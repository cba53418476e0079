"""The one thread that owns MLX: it loads, runs requests one after the other, and survives each one's failure."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from time import time
from typing import TYPE_CHECKING, Any

from mtp_mlx.request import Request
from mtp_mlx.weights import Report

if TYPE_CHECKING:
    from mtp_mlx.pipeline import Pipeline

POLL_SECONDS = 0.5


@dataclass(eq=False)
class Job:
    """A request on its way: what the worker says of it, and whether anybody still wants it."""

    request: Request
    number: int
    said: SimpleQueue = field(default_factory=SimpleQueue)
    cancelled: threading.Event = field(default_factory=threading.Event)

    def say(self, news: dict[str, Any]) -> None:
        """``at`` is when, in seconds since 1970."""
        self.said.put(news | {"at": time()})


class Engine:
    """Runs requests in one worker thread.

    Args:
        load: called in the worker thread with the first request, whose profile it keeps to, and somebody to report
            its progress to; imports and loads all.

    Every dictionary that ``run`` yields is plain JSON: a trace (see ``trace.Trace.to_json``), or before there is
    one, ``{"status": "queued", "place": n}``, ``{"status": "loading", "stage": name, "done": bytes, "of": bytes}`` or
    ``{"status": "failed", "message": line}``.
    """

    def __init__(self, load: Callable[[Request, Report], Pipeline]):
        self._load = load
        self._pipeline: Pipeline | None = None
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._numbers = itertools.count()
        self._finished = 0  # jobs that the worker is through with
        self._thread = threading.Thread(target=self._work, name="mlx", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> Job:
        """Put a request in the queue."""
        job = Job(request, next(self._numbers))
        self._jobs.put(job)
        return job

    def run(self, request: Request) -> Iterator[dict[str, Any]]:
        """Submit a request and follow it; closing the iterator frees the model within a round."""
        return self.follow(self.submit(request))

    def follow(self, job: Job) -> Iterator[dict[str, Any]]:
        """What becomes of a job, until it is done, stopped or failed.

        The last news comes again while there is no newer one: whoever is gone is noticed only when told something.
        """
        news: dict[str, Any] = {"status": "starting"}
        try:
            while True:
                try:
                    news = job.said.get(timeout=POLL_SECONDS)
                except Empty:
                    place = job.number - self._finished
                    yield {"status": "queued", "place": place} if place > 0 else news
                    continue
                yield news
                if news["status"] in ("done", "stopped", "failed"):
                    return
        finally:
            job.cancelled.set()

    def close(self) -> None:
        """Let the worker end after the jobs that it has."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._serve(job)
            except Exception as error:  # one request's failure must not take the model from the others
                line = " ".join(str(error).split()) or type(error).__name__
                job.say({"status": "failed", "message": line})
            self._finished += 1

    def _serve(self, job: Job) -> None:
        if job.cancelled.is_set():
            job.say({"status": "stopped"})
            return
        if self._pipeline is None:

            def report(stage: str, done: int, of: int) -> None:
                job.say({"status": "loading", "stage": stage, "done": done, "of": of})

            report("import", 0, 0)
            self._pipeline = self._load(job.request, report)
            report("device", 0, 0)
        run = self._pipeline.start(job.request, cancelled=job.cancelled.is_set)
        job.say(run.trace.to_json())
        for _ in run:
            job.say(run.trace.to_json())
