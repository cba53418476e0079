"""Programs: /run and /stats through gradio_client, with types, docs and one-line errors; nothing else is public."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError
from tab import free_port
from theatre import Script, script, theatre

from mtp_mlx.backbone import Backbone
from mtp_mlx.engine import Engine
from mtp_mlx.head import load_head
from mtp_mlx.pipeline import Pipeline
from mtp_mlx.request import DRAFT_LENGTH, DRAFTERS
from mtp_mlx.tasks import TASKS
from mtp_mlx.ui import page as pages
from mtp_mlx.ui import serve
from mtp_mlx.ui.programs import DrafterName, TaskName

__all__ = ["script", "theatre"]  # fixtures


@pytest.fixture(scope="module")
def client(theatre: tuple[Script, str]) -> Iterator[Client]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_ANALYTICS_ENABLED", "False")
        client = Client(theatre[1], verbose=False)
    yield client
    client.close()


def test_only_the_two_are_public_and_they_say_what_they_take(client: Client):
    endpoints = client.view_api(return_format="dict", print_info=False)["named_endpoints"]  # type: ignore[index]
    assert endpoints.keys() == {"/run", "/stats"}
    for endpoint in endpoints.values():
        assert endpoint["description"]
        names = {p["parameter_name"]: p for p in endpoint["parameters"]}
        assert {"text", "task", "drafter", "draft_length", "max_tokens", "profile"} <= names.keys()
        assert names["task"]["python_type"]["type"] == "Literal['proofread', 'summarize']"
        assert names["draft_length"]["python_type"]["type"] == "int"
        assert not names["text"]["parameter_has_default"] and names["drafter"]["parameter_default"] == "mtp"
        assert "dict" in endpoint["returns"][0]["python_type"]["type"]
    assert get_args(TaskName) == tuple(TASKS) and get_args(DrafterName) == DRAFTERS


def test_a_run_is_its_whole_trace(client: Client, script: Script):
    trace = client.predict("abcd", inspect=True, api_name="/run")
    assert (trace["status"], trace["text"], trace["token_ids"]) == ("done", "abcd", [*b"abcd"])
    assert [len(round["rows"]) for round in trace["rounds"]][:1] == [5]
    plain = client.predict("abcd", drafter="plain", api_name="/run")
    assert plain["token_ids"] == trace["token_ids"] and len(plain["rounds"]) == 4


@pytest.fixture(scope="module")
def tiny_client(tiny: Backbone, tiny_drafters: tuple[Path, Path]) -> Iterator[Client]:
    """A client of a tiny model with a head."""
    engine = Engine(lambda *_: Pipeline(tiny, load_head(tiny_drafters[0], tiny)))
    blocks = pages.build(engine, has_head=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_ANALYTICS_ENABLED", "False")
        client = Client(serve.launch(blocks, "127.0.0.1", free_port()), verbose=False)
    yield client
    client.close()
    blocks.close(verbose=False)
    engine.close()


@pytest.mark.parametrize("options", [{}, {"draft_length": 7}, {"draft_length": 1}, {"draft_length": 0}])
def test_head_and_lookup_joined_draft_as_many_as_are_asked_for(tiny_client: Client, options: dict):
    def run(**options: Any) -> dict[str, Any]:
        return tiny_client.predict("to the store to the store", max_tokens=24, api_name="/run", **options)

    trace, plain = run(drafter="auto", **options), run(drafter="plain")
    assert (trace["status"], trace["drafter"]) == ("done", "auto")
    length = trace["draft_length"]
    assert length == options.get("draft_length", DRAFT_LENGTH)
    assert trace["token_ids"] == plain["token_ids"]
    assert max(len(round["drafted"]) for round in trace["rounds"]) == length
    assert all(drafted["probability"] is not None for round in trace["rounds"] for drafted in round["drafted"])


def test_stats_are_the_numbers_of_that_run(client: Client, script: Script):
    stats = client.predict("abcd", api_name="/stats")
    assert (stats["rounds"], stats["tokens"], stats["accepted"], stats["drafted"]) == (2, 4, 2, 4)
    assert stats["seconds"] == pytest.approx(0.21)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"drafter": "oracle"}, "oracle"),
        ({"draft_length": 8}, "give 0 to 7"),
        ({"draft_length": [4]}, "give a whole number"),
        ({"max_tokens": 0}, "at least 1"),
        ({"max_tokens": "many"}, "give a whole number"),
        ({"text": ["a"]}, "text is no text but list: give a string"),
        ({"text": None}, "text is no text but NoneType: give a string"),
        ({"task": ["a"]}, "task is no text but list: give a string"),
        ({"task": {"a": 1}}, "task is no text but dict: give a string"),
        ({"drafter": ["mtp"]}, "drafter is no text but list: give a string"),
        ({"profile": ["a"]}, "profile is no text but list: give a string"),
        ({"profile": 8}, "profile is no text but int: give a string"),
    ],
)
def test_what_makes_no_sense_is_told_in_a_line(client: Client, script: Script, options: dict, line: str):
    with pytest.raises(AppError, match=line) as caught:
        client.predict(api_name="/run", **{"text": "abcd"} | options)
    assert "\n" not in str(caught.value)


def test_a_failed_run_says_why_and_the_next_one_runs(client: Client, script: Script):
    script.failure = "no weights today"
    with pytest.raises(AppError, match="no weights today"):
        client.predict("abcd", api_name="/run")
    script.failure = None
    assert client.predict("abcd", api_name="/run")["status"] == "done"


def test_a_program_that_is_killed_stops_its_run_and_frees_the_model(
    client: Client, theatre: tuple[Script, str], script: Script
):
    script.gate.clear()
    code = """
import sys
from gradio_client import Client
for news in Client(sys.argv[1], verbose=False).submit("ab", api_name="/run"):
    print(news["status"], flush=True)
"""
    environment = os.environ | {"GRADIO_ANALYTICS_ENABLED": "False"}
    words = [sys.executable, "-c", code, theatre[1]]
    program = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    assert "running\n" in program.stdout  # it is told so while it runs
    script.started.clear()
    waiting = client.submit("cd", api_name="/run")
    program.kill()
    program.wait()
    assert script.started.wait(60)  # the next one has the model, though the first was never let on
    script.gate.set()
    assert waiting.result(60)["text"] == "cd"
