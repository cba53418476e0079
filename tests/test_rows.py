"""Rows in and out: fields pass through untouched, and every row has its text or what is wrong with it."""

import csv
import io
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtp_mlx.batch import rows
from mtp_mlx.batch.rows import RESULT, Source, format_of, header, render
from mtp_mlx.batch.streams import BatchError

unhurried = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAME = TEXT.filter(lambda name: name not in ("text", "result"))
ENDS = st.sampled_from(["\n", "\r\n"])


def source(tmp_path, data, format="jsonl", **names):
    path = tmp_path / "input"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return Source(path, format, **names)


def written(source, format):
    """The output of a job whose answers are the texts in capitals."""
    out = header(format, source)
    for row in source:
        result = {"error": row.error} if row.error else {"text": row.text.upper(), "tokens": 3}
        out += render(format, source, row, result)
    return out.decode()


@unhurried
@given(
    st.lists(st.dictionaries(NAME, st.integers() | TEXT), max_size=4),
    ENDS,
    st.booleans(),
    st.booleans(),
)
def test_json_lines_keep_every_field(tmp_path, fields, end, mark, ends):
    lines = [json.dumps({**row, "text": f"text {i}"}, ensure_ascii=i % 2 == 0) for i, row in enumerate(fields)]
    data = "\ufeff" * mark + end.join(lines) + end * ends
    out = written(source(tmp_path, data), "jsonl").split("\n")
    assert out.pop() == ""
    assert len(out) == len(lines)
    for i, (before, after) in enumerate(zip(lines, out, strict=True)):
        assert after.startswith(before[:-1])  # byte for byte
        assert json.loads(after) == {**json.loads(before), "result": {"text": f"TEXT {i}", "tokens": 3}}


@unhurried
@given(
    st.lists(st.tuples(TEXT, TEXT), max_size=5).filter(lambda rows: all(any(row) for row in rows)),
    ENDS,
    st.booleans(),
    st.sampled_from(["csv", "jsonl"]),
)
def test_csv_keeps_every_cell(tmp_path, cells, end, mark, format):
    cells = [tuple(cell.replace("\r", "").replace("\0", "") for cell in row) for row in cells]
    file = io.StringIO()
    csv.writer(file, lineterminator=end, quoting=csv.QUOTE_ALL).writerows([("id", "message"), *cells])
    out = written(source(tmp_path, "\ufeff" * mark + file.getvalue(), "csv", field="message"), format)
    if format == "csv":
        read = list(csv.DictReader(io.StringIO(out, newline="")))
        assert [(row["id"], row["message"]) for row in read] == cells
        assert [row["result.text"] for row in read] == [text.upper() for _, text in cells]
    else:
        read = [json.loads(line) for line in out.split("\n")[:-1]]
        assert [(row["id"], row["message"], row["result"]["text"]) for row in read] == [
            (id, text, text.upper()) for id, text in cells
        ]


@unhurried
@given(st.lists(TEXT.map(lambda text: text.replace("\n", "").replace("\r", "")), max_size=5), ENDS, st.booleans())
def test_plain_text_has_a_line_for_each_line(tmp_path, texts, end, ends):
    texts = [*texts, "last"]
    data = end.join(texts) + end * ends
    if data.startswith("\ufeff"):
        return
    assert written(source(tmp_path, data, "text"), "text").split("\n") == [*(text.upper() for text in texts), ""]
    as_json = written(source(tmp_path, data, "text", field="message"), "jsonl")
    assert [json.loads(line)["message"] for line in as_json.split("\n")[:-1]] == texts
    as_csv = list(csv.DictReader(io.StringIO(written(source(tmp_path, data, "text"), "csv"), newline="")))
    assert [row["text"] for row in as_csv] == texts


@pytest.mark.parametrize(
    "line",
    [b"{broken", b"[1]", b"[" * 100_000, b'{"text": \xff}', b"{}", b'{"text": 7}'],
    ids=["broken", "list", "deep", "latin-1", "none", "number"],
)
def test_a_bad_line_has_its_own_error_and_nothing_is_lost(tmp_path, line):
    good = b'{"text": "a", "n": 1.0e400}\n'
    out = written(source(tmp_path, good + b"\n" + line + b"\n" + good), "jsonl").split("\n")
    assert out[0] == out[2] == '{"text": "a", "n": 1.0e400, "result": {"text": "A", "tokens": 3}}'
    value = json.loads(out[1])
    assert value["result"].keys() == {"error"}
    if line in (b"{}", b'{"text": 7}'):  # a good object, which stays as it is
        assert value == {**json.loads(line), "result": value["result"]}
    else:
        assert value["input"] == line.decode("utf-8", "backslashreplace")


@pytest.mark.parametrize(
    ("row", "kept"),
    [
        (b"1", ["1", ""]),
        (b"1,2,3", ["1", "2"]),
        (b'"q"z,3', ['"q"z,3', ""]),
        (b"1,caf\xe9", ["1", "caf\\xe9"]),
        (b'1,"open', ['1,"open', ""]),
    ],
    ids=["short", "long", "quote", "latin-1", "open"],
)
def test_a_bad_csv_row_has_its_own_error_and_nothing_is_lost(tmp_path, row, kept):
    given = source(tmp_path, b"id,text\n7,fine\n" + row + b"\n", "csv")
    read = list(csv.reader(io.StringIO(written(given, "csv"), newline="")))
    assert read[1][:3] == ["7", "fine", "FINE"]
    assert read[2][:2] == kept
    assert read[2][2 + RESULT.index("error")]
    assert read[2][2 + len(RESULT) :] == (["3"] if row == b"1,2,3" else [])
    assert [json.loads(line)["result"].keys() for line in written(given, "jsonl").split("\n")[:-1]] == [
        {"text", "tokens"},
        {"error"},
    ]


def test_a_quote_that_nothing_closes_costs_its_own_line_alone(tmp_path):
    lines = ['7,"two', 'lines"', '8,"open', "9,fine", "", '10,"closed"', '11,"open', "12,last"]
    read = list(source(tmp_path, "id,text\n" + "\n".join(lines), "csv"))
    assert [(row.line, row.text, row.error is None) for row in read] == [
        (2, "two\nlines", True),
        (4, "", False),
        (5, "fine", True),
        (7, "closed", True),
        (8, "", False),
        (9, "last", True),
    ]
    assert [row.cells for row in read if row.error] == [('8,"open',), ('11,"open',)]


@pytest.mark.parametrize("format", ["jsonl", "csv", "text"])
def test_a_line_of_10_mb_is_read_and_an_endless_one_is_an_error(tmp_path, monkeypatch, format):
    wrap = '{{"text": "{}"}}\n' if format == "jsonl" else "{}\n"
    head = "text\n" if format == "csv" else ""
    given = source(tmp_path, head + wrap.format("x" * 10_000_000) + wrap.format("next"), format)
    assert [len(row.text) for row in given] == [10_000_000, 4]
    monkeypatch.setattr(rows, "LONGEST", 1000)
    monkeypatch.setattr("mtp_mlx.batch.streams.LONGEST", 1000)
    first, second = given
    assert "longer than" in first.error
    assert second.text == "next"


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (b"", {}),
        (b"a,b\n", {}),
        (b"text,text\n", {}),
        (b"text,result.error\n", {}),
        (b"te\xffxt\n", {}),
        (b'"text\n', {}),
        (b"text\n", {"into": "text"}),
    ],
    ids=["empty", "no column", "twice", "taken", "latin-1", "quote", "over the text"],
)
def test_a_header_that_does_not_fit_is_refused_in_a_line(tmp_path, data, names):
    with pytest.raises(BatchError) as error:
        list(source(tmp_path, data, "csv", **names))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", ["1", "null", '"mine"', '{"text": "A"}'])
def test_a_json_line_that_has_the_results_field_is_refused_and_not_overwritten(tmp_path, value):
    given = source(tmp_path, '{"text": "a"}\n\n{"text": "a", "result": ' + value + "}\n")
    with pytest.raises(BatchError, match="line 3 has a field 'result' already: give --into another name"):
        list(given)
    lines = written(Source(given.path, "jsonl", into="other"), "jsonl").splitlines()
    assert json.loads(lines[1]) == {"text": "a", "result": json.loads(value), "other": {"text": "A", "tokens": 3}}


def test_a_csv_column_of_the_results_name_goes_into_a_csv_and_is_not_overwritten_in_json(tmp_path):
    given = source(tmp_path, "text,result\na,mine\n", "csv")
    with pytest.raises(BatchError, match="column 'result' already: give --into another name"):
        header("jsonl", given)
    (row,) = csv.DictReader(io.StringIO(written(given, "csv"), newline=""))
    assert (row["text"], row["result"], row["result.text"]) == ("a", "mine", "A")
    other = source(tmp_path, "text,result\na,mine\n", "csv", into="other")
    assert json.loads(written(other, "jsonl")) == {"text": "a", "result": "mine", "other": {"text": "A", "tokens": 3}}


@pytest.mark.parametrize("format", rows.FORMATS)
def test_a_result_does_not_take_the_place_of_a_line_that_is_no_row(tmp_path, format):
    with pytest.raises(BatchError, match="give --into another name"):
        source(tmp_path, "", format, into="input")


@pytest.mark.parametrize(("format", "blank"), [("text", True), ("csv", False), ("jsonl", False)])
def test_only_an_empty_line_of_plain_text_is_known_to_become_nothing(tmp_path, format, blank):
    data = {"text": "a\n\n \t\nb\n", "csv": 'text\na\n""\n" "\nb\n', "jsonl": '{"text": ""}\n{"text": " "}\n'}[format]
    given = source(tmp_path, data, format)
    known = {row.text: row.known for row in given}
    assert [text for text, answer in known.items() if answer] == (["", " \t"] if blank else [])
    if blank:
        (empty,) = [row for row in given if row.text == ""]
        assert render("text", given, empty, known[""]) == b"\n"
        assert "error" not in known[""]


def test_json_lines_do_not_go_into_a_csv(tmp_path):
    with pytest.raises(BatchError, match="jsonl"):
        header("csv", source(tmp_path, b""))


def test_a_name_says_the_format(tmp_path):
    names = {"a.jsonl": "jsonl", "a.jsonl.gz": "jsonl", "a.b.csv.zst": "csv", "a.txt": "text", "a.gz": "text"}
    assert {name: format_of(tmp_path / name) for name in names} == names
