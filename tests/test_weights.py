"""A weights folder is what its SHA256SUMS says, or it is refused in one line that names the file."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import mlx.core as mx
import pytest

from mtp_mlx import weights
from mtp_mlx.backbone import load_backbone
from mtp_mlx.weights import (
    BACKBONE,
    HEAD,
    SUMS,
    WEIGHTS,
    WeightsError,
    fingerprint,
    making,
    memory,
    sha256,
    verify,
    write_sums,
)

FILES = {"config.json": b"{}\n", "model.safetensors": bytes(range(256)) * 20, "tokenizer.json": b'{"a": 1}\n'}
SHIPPED = sorted(p for p in WEIGHTS.rglob("*") if p.is_file())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A good folder of small files."""
    folder = tmp_path / "weights"
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    write_sums(folder)
    return folder


def refusal(folder: Path) -> str:
    """Why a folder is refused; the cure must be in it, on one line."""
    with pytest.raises(WeightsError) as error:
        verify(folder, cure="fetch them again")
    message = str(error.value)
    assert "\n" not in message
    assert message.endswith(": fetch them again")
    return message


def test_a_good_folder_passes(folder: Path):
    verify(folder, cure="")


def test_missing_folder(tmp_path: Path):
    assert str(tmp_path / "nowhere") in refusal(tmp_path / "nowhere")


def test_a_file_in_place_of_the_folder(tmp_path: Path):
    (tmp_path / "file").touch()
    assert str(tmp_path / "file") in refusal(tmp_path / "file")


@pytest.mark.parametrize("name", FILES)
def test_missing_file(folder: Path, name: str):
    (folder / name).unlink()
    assert name in refusal(folder)


@pytest.mark.parametrize("name", FILES)
def test_truncated_file(folder: Path, name: str):
    (folder / name).write_bytes(FILES[name][:-1])
    assert str(folder / name) in refusal(folder)


@pytest.mark.parametrize("name", FILES)
def test_one_changed_bit(folder: Path, name: str):
    first, *rest = FILES[name]
    (folder / name).write_bytes(bytes([first ^ 1, *rest]))
    assert str(folder / name) in refusal(folder)


def test_wrong_checksum(folder: Path):
    sums = (folder / SUMS).read_text()
    (folder / SUMS).write_text(sums.replace(sha256(folder / "tokenizer.json"), "0" * 64))
    assert str(folder / "tokenizer.json") in refusal(folder)


def test_truncated_checksums(folder: Path):
    """Wherever the list of checksums breaks off, it or a file that it no longer holds is named."""
    sums = (folder / SUMS).read_bytes()
    lines = sums.splitlines(keepends=True)
    assert lines[1].endswith(b"model.safetensors\n")
    for length in range(len(lines[0]) + len(lines[1])):
        (folder / SUMS).write_bytes(sums[:length])
        said = refusal(folder)
        assert any(name in said for name in (SUMS, "config.json", "model.safetensors")), length


def test_a_weight_file_that_the_list_does_not_hold(folder: Path):
    """mlx-lm reads every model*.safetensors of a folder."""
    (folder / "model-2.safetensors").write_bytes(b"more")
    assert "model-2.safetensors" in refusal(folder)


def test_other_files_may_lie_beside_the_weights(folder: Path):
    (folder / "notes.txt").write_text("mine")
    verify(folder, cure="")


def test_checksums_that_are_no_text(folder: Path):
    (folder / SUMS).write_bytes(b"\xff\xfe\x00" * 30)
    assert SUMS in refusal(folder)


def test_without_checksums_a_folder_is_taken_as_it_is(folder: Path):
    (folder / SUMS).unlink()
    (folder / "model.safetensors").write_bytes(b"anything")
    verify(folder, cure="")


def test_write_sums_covers_every_file_but_itself(folder: Path):
    write_sums(folder)  # again, now that the list is there
    lines = [line.split("  ") for line in (folder / SUMS).read_text().splitlines()]
    assert lines == [[hashlib.sha256(FILES[name]).hexdigest(), name] for name in sorted(FILES)]


@pytest.mark.skipif(not shutil.which("sha256sum"), reason="no sha256sum here")
def test_sha256sum_reads_the_list(folder: Path):
    assert subprocess.run(["sha256sum", "-c", SUMS], cwd=folder, capture_output=True).returncode == 0


@pytest.mark.parametrize("name", FILES)
def test_the_fingerprint_changes_with_each_file(folder: Path, name: str):
    before = fingerprint(folder)
    assert fingerprint(folder) == before
    (folder / name).write_bytes(FILES[name] + b"\n")
    assert fingerprint(folder) != before


def test_the_fingerprint_ignores_the_rest(folder: Path):
    before = fingerprint(folder)
    (folder / "README.md").write_text("About these weights")
    write_sums(folder)
    assert fingerprint(folder) == before


@pytest.mark.parametrize("sums", [True, False], ids=["with checksums", "without checksums"])
@pytest.mark.parametrize("name", FILES)
def test_loading_a_damaged_folder_is_one_line(folder: Path, name: str, sums: bool):
    """Files that are no model at all; with checksums the file is named before mlx-lm sees it."""
    if not sums:
        (folder / SUMS).unlink()
    (folder / name).write_bytes(b"{")
    with pytest.raises(WeightsError) as error:
        load_backbone(folder)
    assert "\n" not in str(error.value)
    assert str(folder / name if sums else folder) in str(error.value)


def test_the_shipped_backbone_verifies():
    verify(BACKBONE, cure="")
    listed = {line.split("  ")[1] for line in (BACKBONE / SUMS).read_text().splitlines()}
    assert listed == {p.name for p in BACKBONE.iterdir()} - {SUMS}


@pytest.mark.skipif(not HEAD.is_dir(), reason="no head is shipped yet")
def test_the_shipped_head_verifies():
    assert (HEAD / SUMS).is_file()
    verify(HEAD, cure="")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_shipped_file_is_too_large_for_git_hosts(path: Path):
    assert path.stat().st_size < 100 * 2**20


def test_weights_are_found_beside_the_package():
    assert Path(weights.__file__).parent.parent / "weights" == WEIGHTS


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
@pytest.mark.parametrize(
    "content", [LFS, b"", b"<html>404</html>", (5).to_bytes(8, "little") + b"[1,2]", b"[]", b"\xff\xfe\x00"]
)
@pytest.mark.parametrize("dense", [True, False])
def test_a_file_that_is_something_else_is_told_before_it_is_loaded(tmp_path, name, content, dense):
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    mx.save_safetensors(str(tmp_path / "model.safetensors"), {"w": mx.zeros((2, 3))})
    assert memory(tmp_path, dense=dense) == 24
    (tmp_path / name).write_bytes(content)
    with pytest.raises(WeightsError, match="damaged") as error:
        memory(tmp_path, dense=dense)
    assert "\n" not in str(error.value)


def test_sizes_that_config_does_not_tell(tmp_path):
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    packed = {"w.weight": mx.zeros((2, 4), mx.uint32), "w.scales": mx.zeros((2, 1)), "w.biases": mx.zeros((2, 1))}
    mx.save_safetensors(str(tmp_path / "model.safetensors"), packed)
    with pytest.raises(WeightsError, match="group_size"):
        memory(tmp_path, dense=True)


def test_a_folder_that_was_made_for_nothing_is_removed_and_any_other_stays(tmp_path: Path):
    old, new = tmp_path / "old", tmp_path / "old" / "new" / "deep"
    old.mkdir()
    with pytest.raises(WeightsError), making(new):
        assert new.is_dir()
        raise WeightsError("refused")
    assert old.is_dir() and not any(old.iterdir())
    with pytest.raises(WeightsError), making(new):
        (new.parent / "kept").touch()
        raise WeightsError("refused")
    assert [path.name for path in new.parent.iterdir()] == ["kept"]
    with making(new):
        (new / "kept").touch()
    assert (new / "kept").exists()
