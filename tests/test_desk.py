"""What tabs ask for: one run a tab, the newest, and nothing of an older one comes after it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from theatre import Script

from mtp_mlx.engine import Engine
from mtp_mlx.pipeline import Pipeline
from mtp_mlx.ui.desk import KEPT, Desk

TAB: Any = SimpleNamespace(session_hash="a tab")
FORM = ("proofread", "abcd", "mtp", 4, False, "none")


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def desk(script: Script) -> Iterator[Desk]:
    engine = Engine(lambda *_: cast(Pipeline, script))
    yield Desk(engine)
    script.gate.set()
    engine.close()


def until(news: Iterator[str], status: str) -> dict[str, Any]:
    return next(one for one in map(json.loads, news) if one["status"] == status)


def tried(desk: Desk, form: tuple[str, str, str, int, bool, str] = FORM) -> Iterator[str]:
    return desk.fault(*form, cast(Any, SimpleNamespace(fault="end")), TAB)


def test_a_run_with_a_fault_is_two_runs_and_both_say_which(desk: Desk, script: Script):
    script.gate.set()
    news = [json.loads(one) for one in tried(desk)]
    assert [(one["lane"], one["fault"]) for one in news] == sorted((one["lane"], "end") for one in news)
    assert [one["status"] for one in news if one["status"] not in ("starting", "running", "loading")] == ["done"]
    assert len({one["run"] for one in news}) == len({one["key"] for one in news}) == 2


@pytest.mark.parametrize("newer", [False, True], ids=["stop", "another run"])
def test_what_was_stopped_in_its_first_lane_has_no_second(desk: Desk, script: Script, newer: bool):
    """Also where the first one was done before it noticed."""
    lanes = tried(desk)
    until(lanes, "running")
    assert script.started.wait(60)
    if newer:
        other = desk.run(*FORM, TAB)
        until(other, "starting")
    else:
        desk.stop(TAB)
    script.gate.set()
    rest = [json.loads(one) for one in lanes]
    assert {one["lane"] for one in rest} == {1} and rest[-1]["status"] == "stopped"
    if newer:
        assert json.loads([*other][-1])["status"] == "done"


def test_a_run_is_told_whole_to_who_has_its_key_and_the_newest_are_remembered(desk: Desk, script: Script):
    script.gate.set()
    keys = [json.loads([*desk.run(*FORM, TAB)][-1])["key"] for _ in range(KEPT + 1)]
    assert len(set(keys)) == len(keys)
    assert desk.whole(keys[0]) == desk.whole("0" * 16) == "null"
    whole = json.loads(desk.whole(keys[1]))
    assert (whole["status"], whole["text"], len(whole["rounds"]), whole["input"]) == ("done", "abcd", 2, "abcd")


@pytest.mark.parametrize("act", ["run", "race", "fault"])
@pytest.mark.parametrize("ends", ["done", "failed", "empty", "stopped", "running", "starting"])
def test_a_run_that_is_over_is_stopped_and_forgotten(desk: Desk, script: Script, act: str, ends: str):
    """However it ends: a tab that is closed, at whatever moment, never comes again."""
    if ends in ("done", "failed"):
        script.gate.set()
    if ends == "failed":
        script.failure = "no weights today"
    form = (FORM[0], " " if ends == "empty" else FORM[1], *FORM[2:])
    news = desk.run(*form, TAB) if act == "run" else desk.race(*form, TAB) if act == "race" else tried(desk, form)
    if ends in ("running", "starting"):
        until(news, ends)
        job = desk._jobs[TAB.session_hash]
        cast(Any, news).close()
        assert job.cancelled.is_set()
    else:
        if ends == "stopped":
            until(news, "running")
            desk.stop(TAB)
        for _ in news:
            pass
    assert not desk._jobs
