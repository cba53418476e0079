"""One thread owns MLX: requests run in turn, each one's failure is its own, and nobody's absence holds the model."""

import threading
from itertools import groupby, pairwise
from operator import itemgetter

import pytest

from mtp_mlx.backbone import load_backbone
from mtp_mlx.engine import Engine
from mtp_mlx.pipeline import Pipeline
from mtp_mlx.request import Request


def ask(text="hello there my freind", **options):
    return Request("proofread", text, **{"drafter": "lookup", "max_tokens": 12, **options})


@pytest.fixture
def engine(tiny):
    engine = Engine(lambda *_: Pipeline(tiny))
    yield engine
    engine.close()


def last(news):
    return list(news)[-1]


def test_from_loading_to_done(engine):
    news = list(engine.run(ask("a b c")))
    assert [n["status"] for n in news][:3] == ["loading", "loading", "running"]
    assert [n["stage"] for n in news[:2]] == ["import", "device"]
    assert all(a["at"] <= b["at"] for a, b in pairwise(news))
    assert news[-1]["status"] == "done"
    assert len(news[-1]["token_ids"]) <= 12
    assert any(n.get("pending") for n in news)  # a draft is seen before it is judged


def test_whoever_waits_hears_something(tiny):
    """Gradio notices that a tab is gone only when it has something to tell it."""
    gate = threading.Event()

    def load(*_):
        gate.wait()
        return Pipeline(tiny)

    engine = Engine(load)
    news = engine.run(ask())
    assert [next(news)["status"] for _ in range(3)] == ["loading"] * 3  # one of them told, and told again
    gate.set()
    assert last(news)["status"] == "done"
    engine.close()


def test_it_can_be_followed_from_changing_threads(engine):
    """As Gradio does it: every step of the iterator on another thread."""
    news, seen = engine.run(ask()), []

    def step():
        seen.append(next(news, None))

    while not seen or seen[-1] is not None:
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
    assert seen[-2]["status"] == "done"


def test_a_failed_request_says_why_in_a_line_and_the_next_one_runs(engine):
    failed = last(engine.run(ask("   ")))
    assert failed["status"] == "failed"
    assert failed["message"] and "\n" not in failed["message"]
    assert last(engine.run(ask()))["status"] == "done"


def test_a_load_that_fails_is_tried_again(tiny):
    tries = []

    def load(request, report):
        tries.append(request)
        if len(tries) == 1:
            raise ValueError("no weights today")
        return Pipeline(tiny)

    engine = Engine(load)
    assert last(engine.run(ask()))["message"] == "no weights today"
    assert last(engine.run(ask()))["status"] == "done"
    engine.close()


def test_loading_is_told_stage_by_stage_in_bytes(tiny):
    engine = Engine(lambda request, report: Pipeline(load_backbone(tiny.path, report=report)))
    told = [(n["stage"], n["done"], n["of"]) for n in engine.run(ask()) if n["status"] == "loading"]
    engine.close()
    stages = [stage for stage, _ in groupby(told, key=itemgetter(0))]
    assert stages == ["import", "check", "read", "unpack", "device"]
    for stage, size in {"check": sum(p.stat().st_size for p in listed(tiny.path)), "unpack": tiny.nbytes}.items():
        done = [done for name, done, of in told if name == stage and of == size]
        assert done == sorted(done) and done[-1] == size


def listed(folder):
    return [path for path in folder.iterdir() if path.name != "SHA256SUMS"]


class Endless:
    """A pipeline whose runs go on until they are cancelled."""

    def __init__(self):
        self.started, self.free = threading.Event(), threading.Event()

    def start(self, request, *, cancelled):
        self.cancelled = cancelled
        self.trace = self
        return self

    def __iter__(self):
        while not self.cancelled():
            self.started.set()
            yield
        self.free.set()
        yield

    def to_json(self):
        return {"status": "stopped" if self.cancelled() else "running"}


@pytest.fixture
def endless():
    return Endless()


@pytest.fixture
def busy(endless):
    """An engine over it."""
    engine = Engine(lambda *_: endless)
    yield engine
    engine.close()


def test_stop_frees_the_model(busy, endless):
    job = busy.submit(ask())
    assert endless.started.wait(10)
    job.cancelled.set()
    assert endless.free.wait(10)
    assert last(busy.follow(job))["status"] == "stopped"


def test_a_closed_reader_frees_the_model(busy, endless):
    news = busy.run(ask())
    next(news)
    assert endless.started.wait(10)
    news.close()  # the tab is gone
    assert endless.free.wait(10)


def test_the_second_waits_and_is_told_its_place(busy, endless):
    first = busy.submit(ask())
    assert endless.started.wait(10)
    second = busy.submit(ask())
    assert next(busy.follow(second)) == {"status": "queued", "place": 1}
    first.cancelled.set()
    second.cancelled.set()
    assert endless.free.wait(10)


def test_a_request_cancelled_in_the_queue_never_starts(busy, endless):
    first = busy.submit(ask())
    assert endless.started.wait(10)
    second = busy.submit(ask())
    second.cancelled.set()
    first.cancelled.set()
    assert endless.free.wait(10)
    endless.started.clear()
    assert last(busy.follow(second))["status"] == "stopped"
    assert not endless.started.is_set()
