"""Never blank, never silent: loading, drafting off and why, what a reload keeps, and the server's lines in Korean."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper
from playwright.sync_api import BrowserContext, expect
from tab import Tab, free_port, needs_browser
from theatre import Script, script, stage, theatre

from mtp_mlx import weights
from mtp_mlx.engine import Engine
from mtp_mlx.head import load_head
from mtp_mlx.pipeline import Pipeline
from mtp_mlx.probe import ProbeResult
from mtp_mlx.profiles import Ledger, admit, get, watch
from mtp_mlx.prompt import encode
from mtp_mlx.standalone import load_standalone
from mtp_mlx.tasks import PROOFREAD
from mtp_mlx.ui import desk, serve
from mtp_mlx.ui import page as pages
from mtp_mlx.weights import verify

pytestmark = needs_browser
__all__ = ["script", "stage", "theatre"]  # fixtures


def test_loading_shows_its_stage_and_the_bytes(script: Script, browser: BrowserContext):
    def load(_: Any, report: Any) -> Pipeline:
        report("unpack", 270_000_000, 540_000_000)
        script.gate.wait()
        return cast(Pipeline, script)

    script.gate.clear()
    engine = Engine(load)
    blocks = pages.build(engine, has_head=True)
    tab = Tab(browser, serve.launch(blocks, "127.0.0.1", free_port()))
    bar = tab.page.locator("[data-part=loading]")
    expect(bar).to_be_hidden()
    tab.run("abcd", until=("loading",))
    expect(tab.page.locator("[data-part=status]")).to_contain_text("unpacking the weights, 270 / 540 MB")
    assert bar.evaluate("(bar) => bar.position") == 0.5
    assert "MB" not in tab.part("live")
    script.gate.set()
    tab.wait("done")
    expect(bar).to_be_hidden()
    tab.close()
    blocks.close(verbose=False)
    engine.close()


def test_drafting_that_is_off_says_why(stage: Callable[..., Tab]):
    tab = stage()
    note = tab.page.locator("[data-part=off]")
    tab.run("abcd")
    expect(note).to_be_hidden()
    tab.page.get_by_label("Draft length: auto").check()
    expect(tab.page.get_by_role("spinbutton")).to_be_disabled()
    trace = tab.run("abcd")
    assert trace["draft_length"] == 7
    expect(note).to_contain_text("100 ms with 8 rows and 50 ms with one, a guess 10 ms")
    expect(note).to_contain_text("In 1 of 2 passes drafting was off")
    tab.page.get_by_label("Draft length: auto").uncheck()
    tab.page.get_by_role("spinbutton").fill("0")
    tab.run("abcd")
    expect(note).to_have_text("Drafting is off: the draft length is 0.")
    tab.choose("None (plain)")
    tab.run("abcd")
    expect(note).to_have_text("Drafting is off: no drafter is chosen.")


def test_a_reload_keeps_what_was_typed_and_chosen_and_no_other_tab_sees_it(stage: Callable[..., Tab]):
    tab = stage()
    tab.choose("Summarize notifications")
    tab.choose("Prompt lookup")
    tab.page.get_by_label("Draft length: auto").check()
    tab.page.get_by_label("Text").fill("<b>mine</b> ${1}")
    kept = "(text) => (sessionStorage.getItem('mtp-form') ?? '').includes(text)"
    tab.page.wait_for_function(kept, arg="mine")
    tab.page.reload()
    tab.wait("idle")
    expect(tab.page.get_by_label("Text")).to_have_value("<b>mine</b> ${1}")
    for label in ("Summarize notifications", "Prompt lookup", "Draft length: auto"):
        expect(tab.page.get_by_label(label, exact=True)).to_be_checked()
    assert tab.run()["drafter"] == "lookup"
    other = stage()
    expect(other.page.get_by_label("Text")).to_have_value(PROOFREAD.examples[0])
    # What does not fit the form, of another version perhaps, is left alone.
    other.page.evaluate("sessionStorage.setItem('mtp-form', '[\"no such task\", 1, null]')")
    other.page.reload()
    other.wait("idle")
    assert other.run("abcd")["task"] == "proofread"


def test_the_hint_is_of_the_task_and_the_language_whatever_answer_comes_last(stage: Callable[..., Tab]):
    tab = stage()
    tab.page.evaluate("""() => {
        const ask = window.fetch;
        let asked = 0;
        window.fetch = async (...all) => {
            const slow = all[1]?.method === "POST" && !asked++;
            if (slow) await new Promise((go) => setTimeout(go, 1500));
            return ask(...all);
        };
    }""")
    tab.choose("한국어")
    tab.choose("Summarize notifications")
    tab.page.wait_for_timeout(2500)
    expect(tab.page.locator("#text")).to_contain_text("한 줄에 알림 하나")
    expect(tab.page.locator("#run")).to_have_text("실행")


def lines(tokenizer: TokenizerWrapper, folder: Path) -> Iterator[str]:
    """What the server says of what cannot be done, as it says it."""
    (folder / "config.json").write_text("{}")
    (folder / "SHA256SUMS").write_text(f"{'0' * 64}  config.json\n")
    acts: list[Callable[[], Any]] = [
        lambda: encode(tokenizer, PROOFREAD, " "),
        lambda: encode(tokenizer, PROOFREAD, "\ud800"),
        lambda: encode(tokenizer, PROOFREAD, "word " * 10_000),
        lambda: encode(tokenizer, PROOFREAD, "a" * 1_000_000),
        lambda: Pipeline(cast(Any, None)).drafter("mtp"),
        lambda: admit(get("pixel-9"), Ledger({"backbone weights": 2**40})),
        lambda: verify(folder, cure="get the folder again (git checkout, or mtp-mlx convert)"),
        lambda: verify(folder / "none", cure="get the folder again (git checkout, or mtp-mlx convert)"),
        lambda: load_head(folder / "none", cast(Any, None)),
        lambda: load_head(weights.STANDALONE, cast(Any, None)),
        lambda: load_standalone(weights.HEAD, cast(Any, None)),
    ]
    for act in acts:
        with pytest.raises(ValueError) as caught:
            act()
        yield " ".join(str(caught.value).split())
    yield str(watch(get("pixel-9"), 2**40))
    yield str(ProbeResult(8, 16, 1))
    yield desk.EMPTY


def test_what_the_server_says_is_korean_on_a_korean_page(
    stage: Callable[..., Tab], tokenizer: TokenizerWrapper, tmp_path: Path, script: Script
):
    tab = stage()
    tab.choose("한국어")
    expect(tab.page.locator("#run")).to_have_text("실행")
    source = "\n".join((pages.BROWSER / f"{name}.js").read_text("utf-8") for name in pages.SHARED[:4])
    said = list(lines(tokenizer, tmp_path))
    told = tab.page.evaluate(
        "([source, lines]) => { const f = new Function(`const element = document; ${source}; words = WORDS.ko; "
        "return told`)(); return lines.map(f); }",
        [source, said],
    )
    known = f"{weights.HEAD}|{weights.STANDALONE}|{tmp_path}|--[-a-z]+|standalone|MTP|mtp-mlx|train|convert|doctor|git"
    known += "|checkout|Pixel|config.json|GiB|none"
    for line, korean in zip(said, told, strict=True):
        assert not re.search("[A-Za-z]{3,}", re.sub(known, "", korean)), (line, korean)
    script.failure = said[2]
    tab.page.locator("#text textarea").fill("abcd")
    tab.page.click("#run")
    tab.wait("failed")
    assert tab.part("status") == f"실패 – {told[2]}" == tab.part("live")
