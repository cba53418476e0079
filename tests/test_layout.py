"""The house rules: which module may import which, where mlx may be imported, and how a module begins."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "mtp_mlx"

# Each module imports only modules above it. A new module gets its place here.
ORDER = [
    *("mtp_mlx",),
    *("events", "tasks", "profiles", "blas", "weights", "accept", "jsonl"),
    *("metrics", "request", "trace", "terminal"),
    *("cpu.powers", "cpu.products", "cpu.rotation", "cpu", "compiled", "kv", "slots", "prompt", "convert"),
    *("backbone", "bound", "head", "standalone", "inspection"),
    *("drafters", "drafters.base", "drafters.vocabulary", "drafters.lookup", "drafters.mtp", "drafters.auto"),
    *("drafters.standalone", "costs", "drafters.paced", "drafters.together"),
    *("decode", "batched", "faults", "probe", "rounds"),
    *(
        "training",
        "training.recipe",
        "training.wordings",
        "training.typos",
        "training.topics",
        "training.variety",
        "training.texts",
    ),
    *("training.features", "training.acceptance", "training.vocabulary", "training.plot", "training.trainer"),
    *("training.unroll", "training.next_token", "training.job"),
    *("pipeline", "lessons", "engine", "evaluate", "arms", "bench", "growth", "doctor"),
    *("batch.pace", "batch.answers", "batch", "batch.streams", "batch.rows", "batch.journal", "batch.files"),
    *("batch.progress", "batch.command", "batch.curve"),
    *("ui", "ui.words", "ui.programs", "ui.news", "ui.desk", "ui.page", "ui.serve"),
    *("options", "cli", "__main__"),
]
RANK = {name if name == "mtp_mlx" else f"mtp_mlx.{name}": rank for rank, name in enumerate(ORDER)}

STDLIB_ONLY = [
    "events",
    "tasks",
    "request",
    "profiles",
    "blas",
    "weights",
    "metrics",
    "accept",
    "trace",
    "terminal",
    "engine",
    "training.recipe",
    "batch.streams",
    "batch.rows",
    "batch.journal",
    "batch.files",
    "batch.answers",
    "batch.pace",
    "batch",
]
# Imported before blas.load(), or in a process or thread that must not own mlx.
WITHOUT_MLX = ["mtp_mlx", "mtp_mlx.cli", *(f"mtp_mlx.{name}" for name in STDLIB_ONLY)]
BACKPORTS = {"tomli", "tomllib"}  # of the standard library, for Python 3.10


@dataclass(frozen=True)
class Import:
    """``at_start``: it runs when the module is imported; neither in a function nor for type checkers only."""

    module: str
    at_start: bool


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TREES = {name_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def imports(node: ast.AST, *, at_start: bool = True) -> Iterator[Import]:
    """Every import below a node; ``from package import module`` is an import of the module."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.Import():
                yield from (Import(alias.name, at_start) for alias in child.names)
            case ast.ImportFrom():
                assert child.level == 0, "relative imports hide where they lead"
                found = [f"{child.module}.{alias.name}" for alias in child.names]
                modules = {name if name in TREES else child.module for name in found}
                yield from (Import(str(module), at_start) for module in sorted(map(str, modules)))
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield from imports(child, at_start=False)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from imports(child, at_start=False)
            case _:
                yield from imports(child, at_start=at_start)


def reached(name: str) -> set[str]:
    """All modules that importing ``name`` imports, ours followed to the end."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        if module in TREES:
            waiting += [found.module for found in imports(TREES[module]) if found.at_start]
            waiting += [module.rpartition(".")[0]] if "." in module else []
    return seen


def top(module: str) -> str:
    return module.partition(".")[0]


def is_mlx(module: str) -> bool:
    return top(module) in ("mlx", "mlx_lm")


modules = pytest.mark.parametrize("name", TREES)


def test_every_module_has_its_place():
    assert set(RANK) == set(TREES)
    assert len(RANK) == len(ORDER)


@modules
def test_no_module_imports_what_stands_below_it(name: str):
    for found in imports(TREES[name]):
        if top(found.module) == "mtp_mlx" and found.module != "mtp_mlx":
            assert found.module in TREES
            assert RANK[found.module] < RANK[name], f"{name} imports {found.module}"


@pytest.mark.parametrize("name", STDLIB_ONLY)
def test_stdlib_only(name: str):
    others = {top(module) for module in reached(f"mtp_mlx.{name}")} - set(sys.stdlib_module_names)
    assert others - BACKPORTS == {"mtp_mlx"}


@pytest.mark.parametrize("name", [name for name in TREES if name.startswith("mtp_mlx.ui")])
def test_the_page_imports_no_mlx(name: str):
    """Neither by itself, at any time, nor through others when it is imported."""
    assert not [found.module for found in imports(TREES[name]) if is_mlx(found.module)]
    assert not [module for module in reached(name) if is_mlx(module)]


@pytest.mark.parametrize("name", WITHOUT_MLX)
def test_importing_does_not_import_mlx(name: str):
    assert not [module for module in reached(name) if is_mlx(module)]


def test_importing_the_package_and_the_command_line_really_does_not():
    code = f"import sys, {', '.join(WITHOUT_MLX)}; print(*{{'mlx', 'mlx_lm'}}.intersection(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert run.stdout.strip() == ""


def test_decoding_knows_no_drafter():
    """It takes any."""
    assert not {module for module in reached("mtp_mlx.decode") if module.endswith((".head", ".mtp", ".lookup"))}


@modules
def test_a_module_begins_with_one_line_on_what_it_is(name: str):
    doc = ast.get_docstring(TREES[name], clean=False)
    assert doc
    assert "\n" not in doc
    assert doc.endswith(".")
    assert isinstance(TREES[name].body[0], ast.Expr)
