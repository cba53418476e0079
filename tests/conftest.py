"""What many tests share: the shipped model and its tokenizer, and a tiny random model."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mtp_mlx import blas

if "PYTEST_XDIST_WORKER" in os.environ:  # a core for each worker, and for what it starts
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
blas.load()  # before anything imports mlx

import mlx.core as mx  # noqa: E402
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from lessons import RECIPE, rows  # noqa: E402
from messages import QUICK  # noqa: E402
from mlx.utils import tree_flatten, tree_map  # noqa: E402
from mlx_lm.models import llama  # noqa: E402
from mlx_lm.tokenizer_utils import TokenizerWrapper  # noqa: E402
from mlx_lm.tokenizer_utils import load as load_tokenizer  # noqa: E402

from mtp_mlx import pipeline as pipelines  # noqa: E402
from mtp_mlx import weights  # noqa: E402
from mtp_mlx.backbone import Backbone, load_backbone  # noqa: E402
from mtp_mlx.cli import main  # noqa: E402
from mtp_mlx.events import Round  # noqa: E402
from mtp_mlx.head import HeadConfig, MTPHead, save_head  # noqa: E402
from mtp_mlx.pipeline import Pipeline  # noqa: E402
from mtp_mlx.standalone import Standalone, StandaloneConfig, save_standalone  # noqa: E402
from mtp_mlx.training.features import extract  # noqa: E402
from mtp_mlx.training.texts import generate, read_examples  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

# Longest first: files are handed out in the order of collection, and the short ones fill up what is left.
LONGEST = (
    *("test_app", "test_page", "test_decode", "test_link", "test_long", "test_convert", "test_faults"),
    *("test_trainer", "test_command", "test_everyone", "test_tried", "test_command_killed", "test_cli"),
    *("test_replay", "test_batched", "test_learn", "test_pipeline", "test_states", "test_race", "test_programs"),
    *("test_acceptance", "test_bench", "test_blas", "test_kv", "test_standalone", "test_head"),
)

settings.register_profile("unhurried", deadline=None)  # a busy machine is not a failure
settings.load_profile("unhurried")

# All that SmolLM2's vocabulary can write; it lacks the bytes of these and of some unassigned characters.
UNWRITABLE = "\x04\x06\x13\x14\x16\x1d"
CHARACTERS = st.characters(exclude_categories=["Cs", "Cn"], exclude_characters=UNWRITABLE)

TINY = llama.ModelArgs(
    model_type="llama",
    hidden_size=64,
    num_hidden_layers=4,
    intermediate_size=128,
    num_attention_heads=4,
    num_key_value_heads=2,
    rms_norm_eps=1e-5,
    vocab_size=4096,  # the first of the shipped tokenizer's: logits of all 49,152 would be most of such a model's work
    max_position_embeddings=8192,
    tie_word_embeddings=True,
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


@pytest.fixture(scope="session")
def backbone() -> Backbone:
    """The shipped model. Read it, never change it."""
    return load_backbone(weights.BACKBONE)


@pytest.fixture(scope="session")
def shipped(backbone: Backbone) -> Pipeline:
    """What is shipped, loaded as by default over the model that is there; it keeps its probes and prefixes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipelines, "load_backbone", lambda *_, **__: backbone)
        return pipelines.load()


@pytest.fixture(scope="session")
def tokenizer() -> TokenizerWrapper:
    """The shipped tokenizer, without the model."""
    return load_tokenizer(weights.BACKBONE)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    """A small random llama (4 layers, 64 wide, the shipped tokenizer's first ids); ``tiny.path`` opens as weights do.

    Its greedy text hardly repeats itself, so a wrong row anywhere shows in what follows.
    """
    return load_backbone(make_tiny(tmp_path_factory.mktemp("tiny")))


def make_tiny(folder: Path, *, seed: int = 0) -> Path:
    """Write a tiny random model to ``folder``, in mlx-lm's layout."""
    mx.random.seed(seed)
    model = llama.Model(TINY)
    for layer in model.layers:  # three times the usual size: otherwise each token asks for itself again
        layer.update(tree_map(lambda array: array * 3 if array.ndim == 2 else array, layer.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())), {"format": "mlx"})
    config = {name: value for name, value in vars(TINY).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_tokenizer(folder)
    weights.write_sums(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """The shipped tokenizer, without the merges that make ids beyond the tiny model's."""
    tokenizer = json.loads((weights.BACKBONE / "tokenizer.json").read_text(encoding="utf-8"))
    model = tokenizer["model"]
    model["vocab"] = {text: id for text, id in model["vocab"].items() if id < TINY.vocab_size}
    model["merges"] = [pair for pair in model["merges"] if "".join(pair) in model["vocab"]]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    shutil.copy(weights.BACKBONE / "tokenizer_config.json", folder)


@pytest.fixture(scope="session")
def tiny_drafters(tiny: Backbone, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folders of an untrained head and standalone drafter of ``tiny``."""
    head, standalone = (tmp_path_factory.mktemp(name) for name in ("head", "standalone"))
    made = MTPHead(HeadConfig.for_backbone(tiny, kv_layers=(1, 3)), mx.arange(512))
    made.copy_from(tiny)
    save_head(made, head)
    config = StandaloneConfig((0, 3), tiny.fingerprint, tiny.vocab_hash)
    save_standalone(Standalone(tiny, config, mx.arange(512)), standalone)
    return head, standalone


@pytest.fixture
def run(tiny: Backbone, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command over the tiny model: (exit code, standard output, standard error)."""

    def call(*words: str) -> tuple[int, str, str]:
        return main([*words, "--backbone", str(tiny.path)]), *capfd.readouterr()

    return call


def one_line(err: str) -> bool:
    """Whether an error is told in one line, and is no traceback."""
    lines = err.strip().splitlines()
    return len(lines) == 1 and lines[0].startswith("mtp-mlx: ") and "Traceback" not in err


@pytest.fixture
def batch(
    tiny: Backbone, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Run ``mtp-mlx batch`` over the tiny model, which is loaded once: (exit code, standard error)."""
    monkeypatch.setattr("mtp_mlx.pipeline.load", lambda *_, **__: Pipeline(tiny))

    def call(input: object, output: object, *words: str, task: str = "proofread") -> tuple[int, str]:
        code = main(["batch", task, str(input), str(output), "--backbone", str(tiny.path), *QUICK, *words])
        return code, capfd.readouterr().err

    return call


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Where a job is to write; nothing is there yet."""
    return tmp_path / "out.jsonl"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder of texts to train on."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(24)), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def texts(tiny: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's answers to ``lessons.rows(24)``."""
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    generate(tiny, rows(24), path)
    return path


@pytest.fixture(scope="session")
def features(tiny: Backbone, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The features of ``texts``, anchors in the prompts included."""
    folder = tmp_path_factory.mktemp("features")
    extract(tiny, list(read_examples(texts)), folder, kv_layers=RECIPE.kv_layers, prompts=True)
    return folder


@pytest.fixture(scope="session")
def browser() -> Iterator[BrowserContext]:
    """A real Chromium, for the tests that ``tab.needs_browser`` lets run."""
    from playwright.sync_api import expect, sync_playwright
    from tab import CHROMIUM, QUIET, SECONDS

    expect.set_options(timeout=SECONDS)

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser.new_context()
        browser.close()


@st.composite
def rounds(draw: st.DrawFn) -> Round:
    """Any round that a decode could yield."""
    ids = st.integers(0, 49151)
    drafted = tuple(draw(st.lists(ids, max_size=7)))
    accepted = draw(st.integers(0, len(drafted)))
    shares = st.floats(0, 1)
    probabilities = draw(st.sampled_from([0, len(drafted)]).flatmap(lambda n: st.lists(shares, min_size=n, max_size=n)))
    if not drafted:
        kind = draw(st.sampled_from(["plain", "first"]))
    elif accepted < len(drafted):
        kind = draw(st.sampled_from(["correction", "end"] if accepted else ["correction"]))
    else:
        kind = draw(st.sampled_from(["bonus", "end"]))
    seconds = st.floats(1e-6, 10)
    return Round(
        drafted=drafted,
        probabilities=tuple(probabilities),
        accepted=accepted,
        token=None if kind == "end" else draw(ids),
        kind=kind,
        margin=draw(st.floats(0, 100)),
        draft_seconds=draw(seconds),
        verify_seconds=draw(seconds),
    )
