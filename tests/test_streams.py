"""Files by their names: what was written is read again, and a damaged file is refused in a line."""

import io
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtp_mlx.batch import streams
from mtp_mlx.batch.streams import BatchError, check_again, lines, reading, writing

NAMES = ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"]


@pytest.fixture(params=NAMES)
def path(request, tmp_path):
    if request.param.endswith(".zst"):
        pytest.importorskip("backports.zstd")
    return tmp_path / request.param


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(st.binary(max_size=1000))
def test_what_was_written_is_read(path, data):
    written = []
    for _ in range(2):
        with writing(path) as file:
            file.write(data)
        written.append(path.read_bytes())
    with reading(path) as file:
        assert file.read() == data
    assert written[0] == written[1]


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_damaged_file_is_refused_in_a_line(path, damage):
    if path.suffix == ".jsonl":
        pytest.skip("a file that is not compressed cannot tell")
    with writing(path) as file:
        file.write(bytes(range(256)) * 50)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9] if damage == "cut" else whole[:20] + b"\0\xff\0\xff" + whole[24:])
    with pytest.raises(BatchError, match=path.name) as error, reading(path) as file:
        file.read()
    assert "\n" not in str(error.value)


def test_what_can_be_read_only_once_is_refused_unopened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path(os.devnull)):
        with pytest.raises(BatchError, match="pipe it in") as error:
            check_again(path)
        assert "\n" not in str(error.value)
    (tmp_path / "file").touch()
    for name in ("file", "missing", ".", "file/below"):
        check_again(tmp_path / name)


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(streams.importlib, "import_module", missing)
    with pytest.raises(BatchError, match="pip install"), writing(tmp_path / "a.zst"):
        pass


@given(st.lists(st.binary(max_size=8).filter(lambda line: b"\n" not in line), max_size=6), st.booleans())
def test_lines_keep_their_ends_and_lose_the_mark(parts, mark):
    data = b"\n".join(parts)
    if data.startswith(b"\xef\xbb\xbf"):
        return
    read = list(lines(io.BytesIO(b"\xef\xbb\xbf" * mark + data)))
    assert b"".join(read) == data
    assert all(line.endswith(b"\n") for line in read[:-1])


def test_a_line_without_end_is_cut_and_the_next_one_whole(monkeypatch):
    monkeypatch.setattr(streams, "LONGEST", 10)
    read = list(lines(io.BytesIO(b"x" * 95 + b"\nshort\n" + b"y" * 10 + b"\n" + b"z" * 11)))
    assert [len(line) for line in read] == [11, 6, 11, 11]
    assert read[1:] == [b"short\n", b"y" * 10 + b"\n", b"z" * 11]
