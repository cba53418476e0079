"""axe-core, the accessibility checker: fetched by npm into the user's cache, once; no part of the project."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

VERSION = "4.14.1"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


def script() -> str:
    """Its source; the test is skipped where it cannot be had."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mtp-mlx-tests"
    path = folder / f"axe-{VERSION}.min.js"
    if not path.exists():
        if not (npm := shutil.which("npm")):
            pytest.skip("axe-core is not in the cache, and there is no npm to fetch it with")
        folder.mkdir(parents=True, exist_ok=True)
        command = [npm, "pack", "--silent", f"axe-core@{VERSION}", "--pack-destination", str(folder)]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=120)
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(f"axe-core cannot be fetched: {error}")
        packed = folder / f"axe-core-{VERSION}.tgz"
        with tarfile.open(packed) as archive:
            member = archive.extractfile("package/axe.min.js")
            assert member is not None
            path.write_bytes(member.read())
        packed.unlink()
    return path.read_text("utf-8")


def violations(page: Page) -> list[str]:
    """What breaks WCAG 2.2 AA on the page as it is, one line each."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(script())
    found: list[dict[str, Any]] = page.evaluate("(rules) => axe.run(document, { runOnly: rules })", RULES)["violations"]
    return [f"{rule['id']}: {node['target']} {node['failureSummary']}" for rule in found for node in rule["nodes"]]
