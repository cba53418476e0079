"""The page: what a person asks on the left, what the model does on the right. Imports no MLX."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import shorten
from typing import Any

import gradio as gr
from gradio.themes import Base, Default

from mtp_mlx import weights
from mtp_mlx.engine import Engine, Job
from mtp_mlx.profiles import Profile, human, profiles
from mtp_mlx.request import DRAFT_LENGTH, WIDTH, Request
from mtp_mlx.tasks import PROOFREAD, TASKS

RECORDED = Path(__file__).parents[2] / "assets" / "traces"
BROWSER = Path(__file__).parent / "browser"
# What runs in the browser, in this order in one scope.
SCRIPTS = (
    "words",
    "dom",
    "film",
    "attention",
    "detail",
    "passes",
    "numbers",
    "player",
    "race",
    "check",
    "files",
    "main",
)
TITLE = "Frozen multi-token prediction"
INTRO = """# A frozen model, writing in fewer passes

A language model writes one token in each pass. Here a small drafter guesses the next few, and a single pass of the
model checks them all: right guesses stay, and from the first wrong one on everything is thrown away. The text is the
model's own, token for token; only the number of passes changes.
"""
# Title, name, and what it does.
DRAFTERS = [
    ("MTP head", "mtp", "The head reads the model's own state."),
    ("Head and lookup", "auto", "Head and lookup joined: the better guess goes."),
    ("Standalone", "standalone", "A standalone drafter is a second, small model."),
    ("Prompt lookup", "lookup", "Lookup copies from the text."),
    ("None (plain)", "plain", ""),
]
NO_HEAD = "No trained MTP head was found, so prompt lookup guesses: it copies from the text."
PROFILE_HELP = (
    "Keep to the memory that a phone sets apart for AI models; where no figure is published, a fifth of its RAM."
)
CSS = ".gradio-container .main.fillable.app { max-width: 80rem; }"
EMPTY = "the text is empty: write something first"
# The trace says that it is of another text than the one in the form.
TYPED = """(task, text) => {
    document.querySelector(".mtp")?.dispatchEvent(new CustomEvent("typed", { detail: { task, text } }));
}"""
QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}


class Desk:
    """Takes what each browser tab asks for to the engine: one run a tab, the newest."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._jobs: dict[str | None, Job] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count(time.time_ns() // 1_000_000)  # a restarted server goes on above the last one

    def run(
        self, task: str, text: str, drafter: str, draft_length: int, profile: str, request: gr.Request
    ) -> Iterator[dict[str, Any]]:
        """What becomes of a request: everything that the engine says of it, under the run's own number.

        Of two runs of a tab the one with the higher number stands, in whatever order their clicks or news arrive.
        """
        job: Job | None = None
        with self._lock:
            self._cancel(request)
            name = {"run": next(self._numbers)}
            if text.strip():
                options = {"drafter": drafter, "draft_length": int(draft_length), "profile": profile}
                wanted = Request(task, text, **options, inspect=True)
                job = self._jobs[request.session_hash] = self._engine.submit(wanted)
        if job is None:
            yield {"status": "failed", "message": EMPTY} | name
            return
        yield {"status": "starting"} | name
        for news in self._engine.follow(job):
            if news["status"] == "queued" and job.cancelled.is_set():
                yield {"status": "stopped"} | name
                return
            if job.said.empty():  # else the browser is behind, and gets the newer one
                yield news | name

    def race(
        self, task: str, text: str, drafter: str, draft_length: int, profile: str, request: gr.Request
    ) -> Iterator[dict[str, Any]]:
        """Plain decode of a text, then the drafter's; the last news of that one has plain decode's as its rival."""
        options = (int(draft_length), profile, request)
        rival = None
        for lane, name in enumerate(("plain", drafter), start=1):
            news: dict[str, Any] = {}
            for news in self.run(task, text, name, *options):
                done = news["status"] == "done"
                if not done or rival:
                    yield news | {"lane": lane} | ({"rival": rival} if done else {})
            if news.get("status") != "done":
                return
            rival = news

    def stop(self, request: gr.Request) -> None:
        """Stop the run of a tab, if it has one; it frees the model within a round."""
        with self._lock:
            self._cancel(request)

    def _cancel(self, request: gr.Request) -> None:
        if job := self._jobs.pop(request.session_hash, None):
            job.cancelled.set()


def theme() -> Base:
    """A calm look from what the system has: no fonts to fetch."""
    look = Default(
        primary_hue="sky",
        neutral_hue="slate",
        font=("system-ui", "sans-serif"),
        font_mono=("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"),
    )
    return look.set(
        body_text_color_subdued="*neutral_500",
        block_info_text_color="*neutral_500",
        block_info_text_color_dark="*neutral_400",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_hover_dark="*primary_800",
    )


def build(engine: Engine, *, has_head: bool) -> gr.Blocks:
    """The page over an engine; without a head, prompt lookup is the default drafter."""
    desk = Desk(engine)
    without = {"mtp": not has_head, "auto": not has_head, "standalone": not weights.STANDALONE.is_dir()}
    offered = [drafter for drafter in DRAFTERS if not without.get(drafter[1])]
    drafters = [(title, name) for title, name, _ in offered]
    does = " ".join(help for *_, help in offered if help)
    with gr.Blocks(title=TITLE, analytics_enabled=False) as page:
        gr.Markdown(INTRO)
        with gr.Row():
            with gr.Column(scale=4, min_width=300):
                task = gr.Radio([(t.title, t.name) for t in TASKS.values()], value=PROOFREAD.name, label="Task")
                text = gr.Textbox(
                    value=PROOFREAD.examples[0], label="Text", info=_hint(PROOFREAD.name), lines=4, max_lines=12
                )
                with gr.Row():
                    run = gr.Button("Run", variant="primary", min_width=100, elem_id="run")
                    stop = gr.Button("Stop", interactive=False, min_width=100, elem_id="stop")
                race = gr.Button("Race against plain decode", size="sm", elem_id="race")
                _examples(task, text)
                first, info = ("mtp", does) if has_head else ("lookup", NO_HEAD)
                drafter = gr.Radio(drafters, value=first, label="Drafter", info=info)
                draft_length = gr.Slider(
                    0, WIDTH - 1, value=DRAFT_LENGTH, step=1, label="Draft length", info="Tokens guessed for each pass."
                )
                profile = gr.Dropdown(
                    [(_profile(p), key) for key, p in profiles().items()],
                    value="none",
                    label="Device profile",
                    info=PROFILE_HELP,
                )
            with gr.Column(scale=7, min_width=300):
                trace = gr.HTML(
                    elem_id="trace",
                    html_template=_read("page.html"),
                    css_template=_read("look.css"),
                    js_on_load=_read(*(f"{name}.js" for name in SCRIPTS)),
                    apply_default_css=False,
                    recorded=[json.loads(path.read_text("utf-8")) for path in sorted(RECORDED.glob("*.json"))],
                )
        task.change(_retitle, task, text, queue=False, **QUIET)
        gr.on([task.change, text.change], inputs=[task, text], js=TYPED, queue=False, **QUIET)
        for triggers, act in (([run.click, text.submit], desk.run), ([race.click], desk.race)):
            gr.on(
                triggers,
                act,
                [task, text, drafter, draft_length, profile],
                trace,
                trigger_mode="multiple",  # a second Run replaces the first
                concurrency_limit=None,  # the engine queues, and says so
                **QUIET,
            )
        stop.click(desk.stop, queue=False, **QUIET)
        page.unload(desk.stop)
    return page


def _read(*names: str) -> str:
    return "\n".join((BROWSER / name).read_text("utf-8") for name in names)


def _hint(task: str) -> str:
    help = TASKS[task].help
    return f"{help[0].upper()}{help[1:]}."


def _profile(profile: Profile) -> str:
    budget = profile.budget_bytes
    return profile.name if budget is None else f"{profile.name}: {human(budget)}"


def _retitle(task: str) -> dict[str, Any]:
    return gr.update(info=_hint(task))


def _examples(task: gr.Radio, text: gr.Textbox) -> None:
    """Texts to try: a click fills the box and picks the task."""
    for t in TASKS.values():
        gr.Examples(
            [[t.name, example] for example in t.examples],
            [task, text],
            label=f"Examples: {t.title.lower()}",
            example_labels=[shorten(example, 40, placeholder="…") for example in t.examples],
            api_visibility="private",
        )
