"""Replay: any run, stepped, played, scrubbed, saved and opened again; a file is somebody else's text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from tab import ROOT, Tab, needs_browser
from theatre import Script, script, stage, theatre

pytestmark = needs_browser
__all__ = ["script", "stage", "theatre"]  # fixtures
RECORDED = sorted((ROOT / "assets" / "traces").glob("*.json"))


def pressed(tab: Tab, name: str) -> None:
    tab.page.get_by_role("button", name=name, exact=True).click()


def opened(tab: Tab, content: bytes | str, *, name: str = "a.json") -> None:
    data = content.encode() if isinstance(content, str) else content
    tab.page.set_input_files("[data-part=file]", {"name": name, "mimeType": "application/json", "buffer": data})


def states(tab: Tab) -> list[list[str]]:
    return [[state for state, _ in tokens] for tokens in tab.rounds()]


@pytest.fixture
def tab(stage: Callable[..., Tab]) -> Tab:
    """After a run of "abcd": a draft of which two tokens are kept, and a plain pass."""
    tab = stage()
    tab.run("abcd")
    return tab


def test_a_run_can_be_stepped_back_and_forth(tab: Tab):
    judged = ["accepted", "accepted", "rejected", "unread"]
    moments = [
        ([], ""),
        *[([["pending"] * n], "") for n in (1, 2, 3, 4)],
        ([judged], ""),
        ([[*judged, "correction"]], "abc"),
        ([[*judged, "correction"], ["plain"]], "abcd"),
    ]
    pressed(tab, "To the start")
    for wanted, text in moments[1:]:
        pressed(tab, "A step on")
        assert (states(tab), tab.part("text")) == (wanted, text)
    for wanted, text in moments[-2::-1]:
        pressed(tab, "A step back")
        assert (states(tab), tab.part("text")) == (wanted, text)
    assert tab.part("passes") == "–"
    pressed(tab, "To the end")
    assert (states(tab), tab.part("passes")) == (moments[-1][0], "2")


def test_space_plays_at_the_speed_that_is_chosen(tab: Tab):
    """The run took 0.21 seconds: at a quarter of the speed it takes at least 0.8."""
    tab.page.get_by_label("Speed", exact=True).select_option("0.25 ×")
    tab.page.locator(".mtp .text").click()
    seconds = tab.page.evaluate("""() => new Promise((resolve) => {
        const started = performance.now();
        const scrub = document.querySelector("[data-part=scrub]");
        document.dispatchEvent(new KeyboardEvent("keydown", { key: " ", bubbles: true }));
        const look = () => scrub.value === scrub.max
            ? resolve((performance.now() - started) / 1000) : requestAnimationFrame(look);
        requestAnimationFrame(look);
    })""")
    assert seconds >= 0.8
    expect(tab.page.get_by_role("button", name="Play", exact=True)).to_be_visible()
    tab.page.keyboard.press("ArrowLeft")
    assert len(tab.rounds()) == 1
    tab.page.get_by_label("Text").focus()
    tab.page.keyboard.press(" ")  # a space in a text is a space
    assert len(tab.rounds()) == 1


def test_scrubbing_goes_anywhere(tab: Tab):
    scrub = tab.page.get_by_label("Place in the run")
    scrub.fill("3")
    assert states(tab) == [["pending"] * 3]
    assert scrub.get_attribute("aria-valuetext") == "after 0 of 2 passes"
    assert "Replay" in tab.part("status")
    scrub.fill("7")
    assert tab.part("text") == "abcd" and "Done" in tab.part("status")


def saved(tab: Tab, folder: Path) -> dict[str, Any]:
    with tab.page.expect_download() as download:
        pressed(tab, "Save as a file")
    path = folder / "saved.json"
    download.value.save_as(path)
    return json.loads(path.read_text("utf-8"))


def test_a_saved_run_is_opened_as_it_was(tab: Tab, stage: Callable[..., Tab], tmp_path: Path):
    trace = saved(tab, tmp_path)
    other = stage()
    opened(other, json.dumps(trace), name="saved.json")
    expect(other.page.locator("[data-part=origin]")).to_have_text("A recorded run: saved.json")
    assert other.rounds() == tab.rounds() and other.part("text") == tab.part("text") == "abcd"
    other.page.locator(".round .rejected").click()
    assert "ranked that guess 2nd" in other.page.locator(".detail").inner_text()
    again = saved(other, tmp_path)
    assert {name: again[name] for name in ("rounds", "text", "token_ids", "memory")} == {
        name: trace[name] for name in ("rounds", "text", "token_ids", "memory")
    }
    other.run("xyz")  # and a run takes the page back
    assert other.part("text") == "xyz" and other.page.locator("[data-part=origin]").is_hidden()


def test_a_run_that_goes_on_can_be_looked_back_at(stage: Callable[..., Tab], script: Script):
    script.gate.clear()
    tab = stage()
    tab.run("abcd", until=("running",))
    tab.page.wait_for_selector(".round .pending:nth-child(4)")
    pressed(tab, "A step back")
    script.gate.set()
    tab.wait("done")
    assert states(tab) == [["pending"] * 3]
    pressed(tab, "To the end")
    assert tab.part("text") == "abcd"


def sample(**changes: Any) -> dict[str, Any]:
    token = {"id": 97, "text": "a"}
    round = {
        "drafted": [{**token, "probability": 0.5, "top": [{**token, "probability": 0.5}], "attention": [[[0, 1]]]}],
        "accepted": 1,
        "token": {"id": 98, "text": "b"},
        "kind": "bonus",
        "added": "ab",
        "margin": 1.0,
        "rows": [
            {"top": [{**token, "probability": 0.9}], "margin": 1.0, "rank": 1, "probability": 0.9},
            {"top": [{"id": 98, "text": "b", "probability": 0.9}], "margin": 1.0, "rank": None, "probability": None},
        ],
        "draft_seconds": 0.01,
        "verify_seconds": 0.1,
    }
    trace = {
        "version": 2,
        "status": "done",
        "task": "proofread",
        "drafter": "mtp",
        "width": 8,
        "draft_length": 1,
        "max_tokens": 2,
        "memory": {"profile": "none", "budget": None, "entries": {}},
        "input": "ab",
        "prompt_tokens": 1,
        "prompt": [{"id": 1, "text": "<", "probability": None}],
        "token_ids": [97, 98],
        "text": "ab",
        "rounds": [round],
        "finish": "budget",
        "warnings": [],
    }
    first = {name[len("round_") :]: changes.pop(name) for name in list(changes) if name.startswith("round_")}
    return trace | {"rounds": [round | first]} | changes


BAD = {
    "nothing": "",
    "not json": "{",
    "binary": bytes(range(256)),
    "another object": "[1, 2]",
    "null": "null",
    "too deep": "[" * 100_000,
    "another version": json.dumps(sample(version=1)),
    "running": json.dumps(sample(status="running")),
    "markup for a number": json.dumps(sample(prompt_tokens="<img src=x onerror=alert(1)>")),
    "no rounds": json.dumps({name: value for name, value in sample().items() if name != "rounds"}),
    "rounds of another kind": json.dumps(sample(rounds={"length": 3})),
    "a huge text": json.dumps(sample(input="a" * 1_000_001)),
    "other ids": json.dumps(sample(token_ids=[97, 99])),
    "another text": json.dumps(sample(text="ad")),
    "a longer text": json.dumps(sample(text="abc")),
    "another text of a round": json.dumps(sample(text="ac", round_added="ac")),
    "a text of other tokens": json.dumps(sample(round_token={"id": 98, "text": "c"})),
    "more kept than drafted": json.dumps(sample(round_accepted=2)),
    "another kind": json.dumps(sample(round_kind="correction")),
    "rows missing": json.dumps(sample(round_rows=sample()["rounds"][0]["rows"][:1])),
    "a time before": json.dumps(sample(round_draft_seconds=-1)),
    "not a number": json.dumps(sample(round_margin=float("nan"))),
    "a pace without its width": json.dumps(sample(pace={"passes": {"1": 0.1}, "step": 0.01, "chances": [0.5]})),
    "a prototype": '{"__proto__": ' + json.dumps(sample()) + "}",
}


def test_a_file_that_is_no_trace_is_refused_in_a_line(tab: Tab):
    error = tab.page.locator("[data-part=fileError]")
    before = tab.rounds()
    for why, content in BAD.items():
        name = f"{why}<b>.json"
        opened(tab, content, name=name)
        expect(error).to_contain_text(f"{name} was not opened: ")
        assert "\n" not in error.inner_text(), why
        assert tab.rounds() == before
    opened(tab, json.dumps(sample()))
    expect(error).to_be_hidden()
    assert tab.rounds() == [[["accepted", "a"], ["bonus", "b"]]]


def test_a_run_that_took_no_time_is_drawn(tab: Tab):
    complaints: list[str] = []
    tab.page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    opened(tab, json.dumps(sample(round_draft_seconds=0, round_verify_seconds=0)))
    expect(tab.page.locator("[data-part=origin]")).to_be_visible()
    assert "NaN" not in (tab.page.locator("[data-part=verifying]").get_attribute("d") or "NaN")
    pressed(tab, "Play")
    expect(tab.page.locator("[data-part=text]")).to_have_text("ab")
    assert complaints == []


def test_text_in_a_file_is_only_text(tab: Tab):
    text = "<img src=x onerror=alert(1)>${alert(2)}"
    trace = sample(text=f"a{text}", input=text, warnings=[text], round_added=f"a{text}")
    for token in (trace["rounds"][0]["token"], trace["rounds"][0]["rows"][1]["top"][0]):
        token["text"] = text
    opened(tab, json.dumps(trace), name=f"{text}.json".replace("/", ""))
    tab.page.locator(".round .bonus").click()
    assert tab.part("text") == f"a{text}" and text in tab.part("warnings") and "alert(1)" in tab.part("origin")
    assert tab.page.locator(".mtp img").count() == 0


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_runs_are_small_and_inspected(path: Path):
    trace = json.loads(path.read_text("utf-8"))
    assert path.stat().st_size < 300_000
    assert trace["status"] == "done" and trace["rounds"] and trace["prompt"]
    assert all(len(round["rows"]) == len(round["drafted"]) + 1 for round in trace["rounds"])


NAMES = {
    "English": [
        "Proofread, MTP head: “if you could send me the boarding pass…”",
        "Summarize notifications, MTP head: “Mom:",
    ],
    "한국어": ["교정, MTP 헤드: “if you could send me the boarding pass…”", "알림 요약, MTP 헤드: “Mom:"],
}


def test_recorded_runs_have_names_that_people_can_read(stage: Callable[..., Tab]):
    tab = stage()
    for language, (first, summary) in NAMES.items():
        tab.choose(language)
        options = tab.page.locator("[data-part=recorded] option")
        expect(options.first).to_have_text(first)
        names = options.all_inner_texts()
        assert len(set(names)) == len(RECORDED) and any(name.startswith(summary) for name in names)
        assert all(len(name) < 90 for name in names)
        tab.page.locator("[data-part=openRecorded]").click()
        assert first in tab.part("origin")
    tab.choose("English")  # the choice is kept for the other tests


def test_in_another_language_a_recorded_run_has_its_name_there_and_stays_chosen(stage: Callable[..., Tab]):
    tab = stage()
    tab.page.get_by_label("Recorded runs").select_option(index=1)
    pressed(tab, "Watch")
    opened(tab, "{")
    expect(tab.page.locator("[data-part=fileError]")).to_be_visible()
    tab.choose("한국어")
    expect(tab.page.locator("[data-part=origin]")).to_contain_text("녹화된 실행: 교정, 프롬프트 룩업")
    expect(tab.page.locator("[data-part=recorded]")).to_have_value("1")
    expect(tab.page.locator("[data-part=fileError]")).to_be_hidden()
    tab.choose("English")


@pytest.mark.parametrize(
    ("texts", "whole"),
    [
        (["ok", "\ufffd", "\ufffd", "!"], "ok😊!"),
        ([" a", "\ufffd"], " a\ufffd"),
        (["\ufffd", "\ufffd\ufffd", "b"], "é한b"),
    ],
)
def test_parts_of_characters_are_no_reason_to_refuse_a_text(tab: Tab, texts: list[str], whole: str):
    tokens = [{"id": i, "text": text} for i, text in enumerate(texts)]
    plain = sample()["rounds"][0] | {"drafted": [], "accepted": 0, "kind": "plain", "rows": []}
    ended = whole.removesuffix("\ufffd")
    rounds = [plain | {"token": token, "added": ended if token is tokens[-1] else ""} for token in tokens]
    trace = sample(rounds=rounds, token_ids=[*range(len(texts))], text=whole)
    opened(tab, json.dumps(trace))
    expect(tab.page.locator("[data-part=text]")).to_have_text(whole)
    opened(tab, json.dumps(trace | {"text": whole.replace(whole[0], "x", 1)}))
    expect(tab.page.locator("[data-part=fileError]")).to_contain_text("not the text of its rounds")


def test_the_first_token_comes_with_the_prompt_and_is_no_pass(tab: Tab):
    plain = sample()["rounds"][0] | {"drafted": [], "accepted": 0, "rows": []}
    tokens = [{"id": i, "text": text} for i, text in enumerate("abc")]
    rounds = [
        plain | {"token": token, "added": token["text"], "kind": kind}
        for token, kind in zip(tokens, ("first", "plain", "plain"), strict=True)
    ]
    opened(tab, json.dumps(sample(rounds=rounds, token_ids=[0, 1, 2], text="abc")))
    expect(tab.page.locator(".round .first")).to_have_count(1)
    assert (tab.part("text"), tab.part("passes"), tab.part("saved")) == ("abc", "2", "0")
    assert tab.page.locator(".round .number").all_inner_texts() == ["0", "1", "2"]
    assert tab.page.get_by_label("Place in the run").get_attribute("aria-valuetext") == "after 2 of 2 passes"
    pressed(tab, "A step back")
    pressed(tab, "A step back")
    assert (tab.part("text"), tab.part("passes"), tab.part("speed")) == ("a", "–", "–")
    tab.page.locator(".round .first").click()
    assert "Having read the prompt" in tab.page.locator(".detail").inner_text()
    rounds[1]["kind"] = "first"
    opened(tab, json.dumps(sample(rounds=rounds, token_ids=[0, 1, 2], text="abc")))
    expect(tab.page.locator("[data-part=fileError]")).to_contain_text("rounds[1].kind")


def test_the_page_shows_recorded_runs_before_any_model_is_loaded(stage: Callable[..., Tab]):
    tab = stage()
    assert len(RECORDED) >= 3
    for i, path in enumerate(RECORDED):
        trace = json.loads(path.read_text("utf-8"))
        tab.page.get_by_label("Recorded runs").select_option(index=i)
        pressed(tab, "Watch")
        pressed(tab, "To the end")
        assert tab.part("text") == trace["text"]
        assert len(tab.rounds()) == len(trace["rounds"])
        assert tab.part("additional") == f"{trace['stats']['additional_per_pass']:.2f}"
        assert tab.part("speed") == f"{trace['stats']['tokens_per_second']:.1f}"


def test_a_long_trace_stays_smooth(stage: Callable[..., Tab]):
    """5,000 tokens. Bounds are for the best quarter: a busy machine takes its share of the rest."""
    tab = stage()
    round = sample()["rounds"][0]
    rounds = [round | {"added": "ab "} for _ in range(2500)]
    opened(tab, json.dumps(sample(rounds=rounds, token_ids=[97, 98] * 2500, text="ab " * 2500, max_tokens=5000)))
    expect(tab.page.locator("[data-part=passes]")).to_have_text("2500")
    assert tab.page.locator(".round").count() <= 100
    moments = [0, 7500, 5001, 12, *range(6000, 6040)]
    times = tab.page.evaluate(
        """(moments) => moments.map((moment) => {
            const scrub = document.querySelector("[data-part=scrub]");
            const started = performance.now();
            scrub.value = moment;
            scrub.dispatchEvent(new Event("input"));
            document.body.offsetHeight;
            return performance.now() - started;
        })""",
        moments,
    )
    assert sorted(times[:4])[1] < 500, times
    assert sorted(times[4:])[10] < 50, times
    tab.page.get_by_label("Speed", exact=True).select_option("4 ×")
    pressed(tab, "Play")
    frames = tab.page.evaluate("""async () => {
        const times = [];
        let last = await new Promise(requestAnimationFrame);
        for (let i = 0; i < 60; i++) {
            const now = await new Promise(requestAnimationFrame);
            times.push(now - last);
            last = now;
        }
        return times.sort((a, b) => a - b);
    }""")
    assert frames[15] <= 50, frames
