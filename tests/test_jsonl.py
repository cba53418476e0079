"""JSON Lines: any object comes back as it went in; every fault is one line that names file and line."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtp_mlx.jsonl import JsonlError, read_jsonl


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(), max_size=5), st.booleans(), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_any_text_comes_back(tmp_path, texts, escaped, end, mark):
    texts = [text.encode("utf-8", "ignore").decode() for text in texts]
    lines = [json.dumps({"text": text}, ensure_ascii=escaped) for text in texts]
    path = tmp_path / "texts.jsonl"
    path.write_bytes((("\ufeff" if mark else "") + end.join(lines)).encode())
    assert list(read_jsonl(path)) == [(number, {"text": text}) for number, text in enumerate(texts, 1)]


@pytest.mark.parametrize(
    "line",
    [b"{broken", b"[1]", b'"text"', b"7", b"[" * 100_000, b'{"text": ' + b"9" * 5000 + b"}", b'{"text": "\xff"}'],
    ids=["broken", "list", "string", "number", "deep", "digits", "latin-1"],
)
def test_a_bad_line_is_named(tmp_path, line):
    path = tmp_path / "texts.jsonl"
    path.write_bytes(b'{"text": "fine"}\n\n' + line + b"\n")
    with pytest.raises(JsonlError, match=r"texts\.jsonl") as error:
        list(read_jsonl(path))
    assert "line 3" in str(error.value) or "UTF-8" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(JsonlError, match="nothing"):
        list(read_jsonl(tmp_path / "nothing.jsonl"))
