"""Find and verify weights: a folder is what its SHA256SUMS says, or it is refused."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

WEIGHTS = Path(__file__).resolve().parent.parent / "weights"
BACKBONE = WEIGHTS / "smollm2-135m-instruct-4bit"
HEAD = WEIGHTS / "smollm2-135m-instruct-mtp"
STANDALONE = WEIGHTS / "smollm2-135m-instruct-standalone"
SUMS = "SHA256SUMS"


Report = Callable[[str, int, int], None]  # is told the stage of loading, and how much of it is done, in bytes


def unheard(stage: str, done: int = 0, of: int = 0) -> None:
    """A report to nobody."""


# What a folder of a model_type holds, and the option that takes it.
KINDS = {"mtp-head": ("an MTP head", "--head"), "standalone-drafter": ("a standalone drafter", "--standalone")}


class WeightsError(ValueError):
    """Weights are missing, damaged or do not fit; the message says what to do."""


def sha256(path: Path, *, read: Callable[[int], None] = lambda size: None) -> str:
    """SHA-256 of a file, in hexadecimal; ``read`` is told the bytes of each block."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
            read(len(block))
    return digest.hexdigest()


@contextmanager
def making(folder: Path) -> Iterator[None]:
    """Make a folder, and remove what was made if nothing is in it in the end: after a refusal, say."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with suppress(OSError):  # something is in it
            for path in new:
                path.rmdir()


def write_sums(folder: Path) -> None:
    """Record the SHA-256 of a folder's files, but for its model card, in SHA256SUMS (``sha256sum -c`` reads it)."""
    files = sorted(p for p in folder.iterdir() if p.is_file() and p.name not in (SUMS, "README.md"))
    (folder / SUMS).write_text("".join(f"{sha256(p)}  {p.name}\n" for p in files), encoding="utf-8")


def refuse_drafter(folder: Path) -> None:
    """Raise WeightsError where a folder that should be a backbone's is a head's or a standalone drafter's."""
    kind = None
    with suppress(OSError, ValueError, AttributeError):  # no file, no JSON, no object: whoever loads it says so
        kind = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    if isinstance(kind, str) and kind in KINDS:
        name, option = KINDS[kind]
        raise WeightsError(f"{folder} holds {name} (what {option} is for), not a language model: give a model's")


def verify(folder: Path, *, cure: str, report: Report = unheard) -> None:
    """Check a weights folder against its SHA256SUMS, where it has one; ``report`` hears of stage ``check``.

    Raises:
        WeightsError: the folder or a file is missing, or a file is not what was recorded.
    """
    if not folder.is_dir():
        raise WeightsError(f"no weights at {folder}: {cure}")
    if not (folder / "config.json").is_file():
        raise WeightsError(f"no config.json in {folder}: {cure}")
    sums = folder / SUMS
    if not sums.is_file():
        return
    listed = {"config.json": ""} | {path.name: "" for path in folder.glob("*.safetensors")}  # what must be in the list
    for line in sums.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
        digest, _, name = line.partition("  ")
        if not name.endswith("\n"):
            raise WeightsError(f"{sums} is damaged (it breaks off): {cure}")
        listed[name.rstrip("\n")] = digest
    for name in listed:
        if not (folder / name).is_file():
            raise WeightsError(f"{name} is missing from {folder}: {cure}")
    done, size = 0, sum((folder / name).stat().st_size for name in listed)

    def read(block: int) -> None:
        nonlocal done
        done += block
        report("check", done, size)

    for name, digest in listed.items():
        if sha256(folder / name, read=read) != digest:
            raise WeightsError(f"{folder / name} is damaged (its SHA-256 is not the recorded one): {cure}")


def fingerprint(folder: Path) -> str:
    """SHA-256 over a model's config.json, tokenizer.json and weight files: what a trained head is bound to."""
    digest = hashlib.sha256()
    for path in sorted([folder / "config.json", folder / "tokenizer.json", *folder.glob("model*.safetensors")]):
        digest.update(f"{path.name} {sha256(path)}\n".encode())
    return digest.hexdigest()


def memory(folder: Path, *, dense: bool) -> int:
    """Bytes that a folder's weights take once they are loaded, told from the files' headers alone.

    Args:
        dense: as float32 (4 bytes a value, quantized ones unpacked), as on the CPU; else as they are in the files.

    Raises:
        WeightsError: a file is damaged: not safetensors, or not as config.json says.
    """
    if not (folder / "config.json").is_file():
        return 0  # no weights: loading them will say so
    try:
        quantization = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("quantization", {})
        return sum(_memory(path, quantization, dense=dense) for path in folder.glob("model*.safetensors"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # whatever does not look as it should
        what = " ".join(str(error).split())
        raise WeightsError(f"the weights in {folder} are damaged ({what}): get the folder again") from error


def _memory(path: Path, quantization: dict, *, dense: bool) -> int:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            raise ValueError(f"{path.name} is not a safetensors file")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    total = 0
    for name, entry in header.items():
        module, _, part = name.rpartition(".")
        begin, end = entry["data_offsets"]
        if not dense:
            total += end - begin
        elif f"{module}.scales" not in header:
            total += 4 * math.prod(entry["shape"])
        elif part == "scales":
            form = quantization.get(module, quantization)
            total += 4 * math.prod(entry["shape"]) * form["group_size"]
    return total
