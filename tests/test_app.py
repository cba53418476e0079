"""app.py over the shipped model: a run in a real browser, the queue, Stop, Ctrl-C, and no request to the world."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import BrowserContext, expect
from tab import END, ROOT, Tab, free_port, needs_browser, shots

from mtp_mlx import weights
from mtp_mlx.tasks import PROOFREAD, SUMMARIZE
from mtp_mlx.ui import serve

pytestmark = needs_browser
LONG = " ".join(PROOFREAD.examples * 2)  # seconds of plain decode


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


def start(port: int, host: str = "127.0.0.1", **environment: str) -> tuple[subprocess.Popen[str], str]:
    """Start app.py; wait for the line that says where it is."""
    process = subprocess.Popen(
        [sys.executable, "app.py", "--host", host, "--port", str(port)],
        cwd=ROOT,
        env={"OPENBLAS_NUM_THREADS": "1"} | os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    address = f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
    assert address in line
    return process, address


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
    tab.close()
    assert tab.errors == []


def test_loading_and_running_ask_nothing_of_the_world(browser: BrowserContext, app: App):
    tab = Tab(browser, app.address)
    tab.page.get_by_role("spinbutton").fill("5")
    trace = tab.run(PROOFREAD.examples[3])
    assert (trace["status"], trace["draft_length"]) == ("done", 5)
    assert trace["drafter"] == ("mtp" if weights.HEAD.is_dir() else "lookup")
    tab.page.screenshot(path=shots("page.png"), full_page=True)  # the picture in the README
    tab.close()
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


def test_a_rejection_says_why(tab: Tab):
    tab.choose("MTP head")
    trace = tab.run(PROOFREAD.examples[0])
    number, round = next((i, r) for i, r in enumerate(trace["rounds"]) if r["kind"] == "correction")
    guess, row = round["drafted"][round["accepted"]], round["rows"][round["accepted"]]
    tab.page.locator(".round").nth(number).locator(".rejected").click()
    shown = tab.page.locator(".detail .why").inner_text().replace("·", " ")
    wanted, chance = round["token"]["text"], row["top"][0]["probability"]
    assert shown.startswith(f"The head wrote {guess['text']} ({guess['probability']:.2f}); ")
    assert f"the model wanted {wanted} ({chance:.2f}), and ranked that guess {row['rank']}" in shown
    assert row["rank"] > 1 and len(row["top"]) == len(guess["top"]) == 3


def test_the_numbers_are_the_tokens_counted(tab: Tab):
    trace = tab.run(PROOFREAD.examples[3])
    flat = [state for tokens in tab.rounds() for state, _ in tokens]
    passes, accepted = len(tab.rounds()) - flat.count("first"), flat.count("accepted")
    assert (flat[0], flat.count("first")) == ("first", 1)
    drafted = accepted + flat.count("rejected") + flat.count("unread")
    assert tab.part("passes") == str(passes)
    assert tab.part("additional") == f"{accepted / passes:.2f}"
    assert tab.part("acceptance") == f"{100 * accepted / drafted:.0f} %"
    assert tab.part("saved") == str(len(trace["token_ids"]) - 1 - passes)
    assert float(tab.part("speed")) == pytest.approx(trace["stats"]["tokens_per_second"], abs=0.051)


def test_a_summary_by_plain_decode_guesses_nothing(tab: Tab):
    tab.choose("None (plain)")
    tab.page.get_by_role("button", name="Jane: Running 10 min late").click()
    expect(tab.page.get_by_label("Text")).to_have_value(SUMMARIZE.examples[3])
    expect(tab.page.get_by_label(SUMMARIZE.title)).to_be_checked()
    trace = tab.run("Mom: call me")
    assert trace["task"] == "summarize" and trace["text"]
    first, *others = [state for tokens in tab.rounds() for state, _ in tokens]
    assert (first, {*others}) == ("first", {"plain"})
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
    tab.run(LONG, until=("running",))
    tab.page.wait_for_selector(".round:nth-child(3)")
    tab.page.click("#stop")
    trace = tab.wait(*END)
    assert trace["status"] == "stopped" and "so far" in tab.part("status")
    assert 0 < trace["stats"]["tokens"] < trace["max_tokens"]
    assert tab.part("text") == trace["text"] != ""
    assert tab.run("helo")["status"] == "done"


def test_two_tabs_queue_and_the_second_runs_when_the_first_is_stopped(tab: Tab, browser: BrowserContext, app: App):
    other = Tab(browser, app.address)
    tab.choose("None (plain)")
    tab.run(LONG, until=("running",))
    assert other.run("helo", until=("queued",))["place"] == 1
    assert "one run is ahead" in other.part("status")
    tab.page.click("#stop")
    assert (tab.wait(*END)["status"], other.wait(*END)["status"]) == ("stopped", "done")
    other.close()


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="no IPv6 on this machine")


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("::1", marks=needs_ipv6)])
def test_a_port_in_use_is_one_line_and_a_failure(app: App, host: str):
    port = app.address.rstrip("/").rpartition(":")[2]
    words = [sys.executable, "app.py", "--host", host, "--port", port]
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 1
    address = re.escape(f"[{host}]" if ":" in host else host)
    assert re.fullmatch(rf"cannot open http://{address}:{port}: .*in use.*\n", result.stderr) and result.stdout == ""


def test_a_host_that_there_is_not_is_one_line_and_a_failure():
    words = [sys.executable, "app.py", "--host", "no.such.invalid", "--port", str(free_port())]
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 1
    assert re.fullmatch(r"there is no host 'no.such.invalid' .*--host\n", result.stderr)


@needs_ipv6
@pytest.mark.parametrize("port", ["0", "65536", "x", "9" * 5000], ids=["0", "65536", "x", "long"])
def test_a_port_that_is_none_is_refused_as_an_argument(port: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stop:
        serve.main(["--port", port])
    assert stop.value.code == 2
    assert "is not a port: give 1 to 65535" in capsys.readouterr().err.splitlines()[-1]


def test_the_page_opens_at_an_address_of_ipv6_too():
    process, _ = start(free_port(), "::1")
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0


def test_ctrl_c_ends_it_at_once_whatever_it_does(browser: BrowserContext):
    process, address = start(free_port())
    tab = Tab(browser, address)
    tab.run(until=("loading", "running"))
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20) == ("", None) and process.returncode == 0
    tab.close()
