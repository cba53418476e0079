"""What the README says is there: its commands parse, its files exist, its options are the command line's."""

import re
import shlex
from pathlib import Path

import pytest

from mtp_mlx.options import parser

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ (?:uv run )?mtp-mlx (.+)$", README, re.MULTILINE)
CODE = re.findall(r"`([^`\n]+)`", README)


@pytest.mark.parametrize("command", COMMANDS)
def test_shown_commands_parse(command):
    assert parser().parse_args(shlex.split(command))


def test_there_are_commands_to_check():
    assert COMMANDS


def test_every_command_of_the_command_line_is_explained():
    commands = next(a.choices for a in parser()._actions if a.choices)
    assert set(commands) <= set(re.findall(r"`mtp-mlx (\w+)", README))


def test_every_option_that_is_named_exists():
    known = {"--host", "--port", "-m", "--depth"}  # app.py's, pytest's, git's
    for command in next(a.choices for a in parser()._actions if a.choices).values():
        known |= set(command._option_string_actions)
    named = {option for code in CODE for option in re.findall(r"(?<!\S)--?[a-z][a-z-]*", code)}
    assert named <= known


def test_linked_files_exist():
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert links
    assert all((ROOT / link).exists() for link in links)


def test_the_layout_is_the_layout():
    block = README.split("## Layout")[1].split("```")[1]
    named = set(re.findall(r"\b(\w+)\.py\b", block))
    real = {p.stem for p in (ROOT / "mtp_mlx").glob("*.py") if not p.stem.startswith("_")}
    assert real <= named
    assert named <= real | {"app"}
