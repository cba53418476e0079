"""The page: what a person asks on the left, what the model does on the right. Imports no MLX."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import shorten
from typing import Any

import gradio as gr
from gradio.themes import Base, Default

from mtp_mlx import weights
from mtp_mlx.engine import Engine
from mtp_mlx.profiles import human, profiles
from mtp_mlx.request import DRAFT_LENGTH, WIDTH
from mtp_mlx.tasks import PROOFREAD, TASKS
from mtp_mlx.ui.desk import Desk
from mtp_mlx.ui.programs import add_endpoints
from mtp_mlx.ui.words import EN, LANGUAGES, Words

ASSETS = Path(__file__).parents[2] / "assets"
BROWSER = Path(__file__).parent / "browser"
# What runs in the browser, in this order in one scope for each tab.
SHARED = ("words", "told.ko", "words.ko", "dom", "film", "news", "link", "standing", "attention", "detail")
WATCH = (*SHARED, "passes", "numbers", "player", "race", "check", "files", "main")
LEARN = (*SHARED, "words.learn", "words.learn.ko", "learn", "steps", "steps.costs", "faults", "tried", "start")
# The recorded runs that Learn is told on, by the name that its steps have for them.
TOLD = {
    "mtp": "1-proofread-mtp",
    "lookup": "2-proofread-lookup",
    "standalone": "3-proofread-standalone",
    "plain": "4-proofread-plain",
    "unsure": "6-proofread-mtp",
}
TITLE = "Frozen multi-token prediction"
# The trace says that it is of another text than the one in the form, and the fault lab runs on that one.
TYPED = """(task, text) => {
    const typed = new CustomEvent("typed", { detail: { task, text } });
    for (const part of document.querySelectorAll(".mtp")) part.dispatchEvent(typed);
}"""
# The language of the browser, or the one that was chosen here before.
BROWSER_LANGUAGE = """() => {
    let before = null;
    try { before = localStorage.getItem("mtp-language"); } catch {}  // a browser may keep its storage shut
    return before ?? (navigator.language.startsWith("ko") ? "ko" : "en");
}"""
SPOKEN = """(language) => {
    try { localStorage.setItem("mtp-language", language); } catch {}
    document.documentElement.lang = language;
    const spoken = new CustomEvent("spoken", { detail: language });
    for (const part of document.querySelectorAll(".mtp")) part.dispatchEvent(spoken);
}"""
# What is typed and chosen outlives a reload: it stays in this tab's own storage, and goes nowhere.
KEEP = """(...form) => {
    try { sessionStorage.setItem("mtp-form", JSON.stringify(form)); } catch {}
}"""
KEPT = """(...form) => {
    const known = %s;
    let [kept, text] = [null, null];
    try {
        text = sessionStorage.getItem("mtp-text");
        kept = JSON.parse(sessionStorage.getItem("mtp-form"));
    } catch {}
    const fits = (value, i) => typeof value === typeof form[i] && (!known[i] || known[i].includes(value));
    const filled = Array.isArray(kept) && kept.length === form.length && kept.every(fits) ? kept : form;
    return filled.map((value, i) => (i === 1 && text !== null ? text : value));
}"""
QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}


def css() -> str:
    """All style sheets, once for the page: those of a component are read anew at each of its changes."""
    return f"{_read('page.css')}\n#trace, #learn {{ {_read('look.css', 'learn.css')} }}"


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
    offered = [name for name in EN.drafters if not without.get(name)]

    def whole(key: str) -> str:
        return desk.whole(key)  # Gradio marks what a browser may call, and a method cannot be marked

    with gr.Blocks(title=TITLE, analytics_enabled=False) as page:
        add_endpoints(engine)  # first: the names of the page's own events give way
        with gr.Row(elem_id="top"):
            intro = gr.Markdown(EN.intro, elem_id="intro")
            language = gr.Radio(
                [("English", "en"), ("한국어", "ko")], value="en", label="Language · 언어", elem_id="language", scale=0
            )
        with gr.Tabs():
            with gr.Tab(EN.watch) as watch, gr.Row():
                with gr.Column(scale=4, min_width=300):
                    task = gr.Radio(_tasks(EN), value=PROOFREAD.name, label=EN.task)
                    text = gr.Textbox(
                        value=PROOFREAD.examples[0],
                        label=EN.text,
                        info=EN.tasks[PROOFREAD.name][1],
                        lines=4,
                        max_lines=12,
                        elem_id="text",
                    )
                    with gr.Row():
                        run = gr.Button(EN.run, variant="primary", min_width=100, elem_id="run")
                        stop = gr.Button(EN.stop, interactive=False, min_width=100, elem_id="stop")
                    race = gr.Button(EN.race, size="sm", elem_id="race")
                    examples = [_examples(name, task, text) for name in TASKS]
                    drafter = gr.Radio(
                        _drafters(EN, offered),
                        value="mtp" if has_head else "lookup",
                        label=EN.drafter,
                        info=_what_they_do(EN, offered),
                    )
                    auto = gr.Checkbox(value=False, label=EN.auto, info=EN.auto_help)
                    draft_length = gr.Slider(
                        0, WIDTH - 1, value=DRAFT_LENGTH, step=1, label=EN.draft_length, info=EN.draft_length_help
                    )
                    profile = gr.Dropdown(_profiles(EN), value="none", label=EN.profile, info=EN.profile_help)
                with gr.Column(scale=7, min_width=300):
                    trace = gr.HTML(
                        elem_id="trace",
                        html_template="",
                        js_on_load=_script(
                            "page.html",
                            WATCH,
                            recorded=[_recorded(path.stem) for path in sorted((ASSETS / "traces").glob("*.json"))],
                        ),
                        apply_default_css=False,
                        server_functions=[whole],
                    )
            with gr.Tab(EN.learn) as learn:
                lessons = gr.HTML(
                    elem_id="learn",
                    html_template="",
                    js_on_load=_script(
                        "learn.html",
                        LEARN,
                        runs={name: _recorded(file) for name, file in TOLD.items()},
                        lessons=json.loads((ASSETS / "lessons.json").read_text("utf-8")),
                    ),
                    apply_default_css=False,
                    server_functions=[whole],
                )

        def speak(language: str) -> list[dict[str, Any]]:
            """The form in another language; what is chosen and written in it stays."""
            words = LANGUAGES[language]
            return [
                gr.update(value=words.intro),
                gr.update(label=words.watch),
                gr.update(label=words.learn),
                gr.update(label=words.task, choices=_tasks(words)),
                gr.update(label=words.text),
                gr.update(value=words.run),
                gr.update(value=words.stop),
                gr.update(value=words.race),
                *(gr.update(label=words.examples(title)) for title, _ in words.tasks.values()),
                gr.update(label=words.drafter, choices=_drafters(words, offered), info=_what_they_do(words, offered)),
                gr.update(label=words.draft_length, info=words.draft_length_help),
                gr.update(label=words.auto, info=words.auto_help),
                gr.update(label=words.profile, choices=_profiles(words), info=words.profile_help),
            ]

        said = [intro, watch, learn, task, text, run, stop, race, *examples, drafter, draft_length, auto, profile]
        language.change(speak, language, said, queue=False, **QUIET)
        language.change(inputs=language, js=SPOKEN, queue=False, **QUIET)
        page.load(outputs=language, js=BROWSER_LANGUAGE, queue=False, **QUIET)
        # By one event for both: the answers of two could come in the wrong order.
        gr.on([task.change, language.change], _hint, [task, language], text, queue=False, **QUIET)
        gr.on([task.change, text.change], inputs=[task, text], js=TYPED, queue=False, **QUIET)
        form = [task, text, drafter, draft_length, auto, profile]
        auto.change(lambda auto: gr.update(interactive=not auto), auto, draft_length, queue=False, **QUIET)
        known = json.dumps([list(TASKS), None, offered, None, None, list(profiles())])
        page.load(inputs=form, outputs=form, js=KEPT % known, queue=False, **QUIET)
        gr.on([each.change for each in form], inputs=form, js=KEEP, queue=False, **QUIET)
        for triggers, act in (([run.click, text.submit], desk.run), ([race.click], desk.race)):
            gr.on(
                triggers,
                act,
                form,
                trace,
                trigger_mode="multiple",  # a second Run replaces the first
                concurrency_limit=None,  # the engine queues, and says so
                **QUIET,
            )
        stop.click(desk.stop, queue=False, **QUIET)
        lessons.tried(desk.fault, form, lessons, trigger_mode="multiple", concurrency_limit=None, **QUIET)
        lessons.halted(desk.stop, queue=False, **QUIET)
    return page


def _read(*names: str) -> str:
    return "\n".join((BROWSER / name).read_text("utf-8") for name in names)


def _script(html: str, scripts: tuple[str, ...], **given: Any) -> str:
    """What makes a part of the page, from ``given``.

    Neither is a template's or a property's: Gradio compiles and compares all of those at each piece of news.
    """
    made = f"const given = {json.dumps(given)};\nelement.innerHTML = {json.dumps(_read(html))};"
    return "\n".join([made, _read(*(f"{name}.js" for name in scripts))])


def _recorded(name: str) -> dict[str, Any]:
    return json.loads((ASSETS / "traces" / f"{name}.json").read_text("utf-8"))


def _tasks(words: Words) -> list[tuple[str, str]]:
    return [(title, name) for name, (title, _) in words.tasks.items()]


def _drafters(words: Words, offered: list[str]) -> list[tuple[str, str]]:
    return [(words.drafters[name][0], name) for name in offered]


def _what_they_do(words: Words, offered: list[str]) -> str:
    return " ".join(filter(None, (words.drafters[name][1] for name in offered))) if "mtp" in offered else words.no_head


def _profiles(words: Words) -> list[tuple[str, str]]:
    known = profiles()
    named = [(f"{p.name}: {human(p.budget_bytes)}", key) for key, p in known.items() if p.budget_bytes is not None]
    return [*((words.this_machine, key) for key, p in known.items() if p.budget_bytes is None), *named]


def _hint(task: str, language: str) -> dict[str, Any]:
    return gr.update(info=LANGUAGES[language].tasks[task][1])


def _examples(name: str, task: gr.Radio, text: gr.Textbox) -> gr.Dataset:
    """Texts to try: a click fills the box and picks the task."""
    examples = TASKS[name].examples
    return gr.Examples(
        [[name, example] for example in examples],
        [task, text],
        label=EN.examples(EN.tasks[name][0]),
        example_labels=[shorten(example, 40, placeholder="…") for example in examples],
        api_visibility="private",
    ).dataset
