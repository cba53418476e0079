"""Files in, files out: the same command goes on, and nothing is lost, doubled or overwritten."""

import json
import os
from contextlib import nullcontext
from pathlib import Path

import pytest
from capitals import capitals, rows, work

from mtp_mlx.batch.files import Job, claim, owned, spool
from mtp_mlx.batch.rows import Source
from mtp_mlx.batch.streams import BatchError


@pytest.fixture
def source(tmp_path):
    return rows(tmp_path / "in.jsonl", 9, bad=(6,))


def test_rows_come_out_in_their_order_and_are_counted(source, output):
    def backwards(texts):
        yield from reversed(list(capitals(texts)))

    seen = []
    job = Job(source, output, about={})
    job.run(backwards, seen=seen.append)
    assert not output.exists()
    summary = job.finish()
    values = [json.loads(line) for line in output.read_text().splitlines()]
    assert [value.get("id") for value in values] == [0, 1, 2, 3, 4, 5, None, 7, 8]
    assert values[6]["input"] == "{broken"
    assert (summary.rows, summary.failed, summary.tokens, summary.additional_per_pass) == (9, 1, 24, 0.5)
    assert "line 7" in summary.failures[0]
    assert len(seen) == 9
    assert sorted(path.name for path in output.parent.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_an_empty_line_of_plain_text_is_an_empty_line_and_no_failure(tmp_path):
    path, asked = tmp_path / "in.txt", []
    path.write_text("one\n\n  \ntwo\n")

    def answer(texts):
        for number, text in texts:
            asked.append(text)
            yield from capitals([(number, text)])

    summary = work(Source(path, "text"), tmp_path / "out.txt", answer=answer)
    assert (tmp_path / "out.txt").read_text() == "ONE\n\n\nTWO\n"
    assert (asked, summary.rows, summary.failed) == (["one", "two"], 4, 0)


@pytest.mark.parametrize(
    ("name", "data"),
    [("in.jsonl", '{"text": "a"}\n{"text": "b", "result": "mine"}\n'), ("in.csv", "text,result\na,mine\n")],
)
@pytest.mark.parametrize("piped", [False, True])
def test_a_row_that_has_the_results_field_is_refused_before_any_work(tmp_path, output, name, data, piped):
    path = tmp_path / name
    path.write_text(data)
    with pytest.raises(BatchError, match="'result' already") as error, owned(output), path.open("rb") as stream:
        format = name.partition(".")[2]
        given = Source(spool(stream, output), format, name="standard input") if piped else Source(path, format)
        work(given, output, answer=lambda texts: pytest.fail("begun"))
    assert str(error.value).startswith("standard input" if piped else str(path))
    assert [path.name for path in tmp_path.iterdir()] == [name]  # nothing is left behind


def test_no_rows_are_an_empty_output(tmp_path, output):
    assert work(rows(tmp_path / "in.jsonl", 0), output).rows == 0
    assert output.read_bytes() == b""


def test_it_stops_between_rows_and_goes_on(source, output):
    finished = []
    stop = lambda: len(finished) >= 3  # noqa: E731
    job = Job(source, output, about={}, stopping=stop)
    job.run(capitals, seen=finished.append)
    assert job.finish() is None
    assert (len(finished), job.journal.done) == (3, 3)
    assert not output.exists()

    asked = []

    def rest(texts):
        for number, text in texts:
            asked.append(number)
            yield from capitals([(number, text)])

    assert work(source, output, answer=rest, about={}).rows == 9
    assert asked == [3, 4, 5, 7, 8]


@pytest.mark.parametrize("changed", ["task", "input", "rows", "more"])
def test_a_changed_job_is_refused_in_a_line(tmp_path, source, output, changed):
    Job(source, output, about={"task": "proofread"}).journal.close()
    about = {"task": "proofread"}
    if changed == "task":
        about = {"task": "summarize"}
    elif changed == "input":
        source.path.write_text(source.path.read_text().replace("text 3", "text 4"))
    elif changed == "rows":
        rows(source.path, 10, bad=(6,))
    else:
        about["width"] = 8
    with pytest.raises(BatchError, match="begun with another") as error:
        Job(source, output, about=about)
    assert "\n" not in str(error.value)
    assert "remove" in str(error.value)


def test_it_overwrites_nothing(source, output):
    output.write_text("mine")
    with pytest.raises(BatchError, match="exists"):
        Job(source, output, about={})
    output.unlink()
    output.symlink_to("nowhere")
    with pytest.raises(BatchError, match="exists"):
        Job(source, output, about={})
    output.unlink()

    job = Job(source, output, about={})
    job.run(capitals)
    output.write_text("mine")  # while it was at work
    with pytest.raises(BatchError, match="exists"):
        job.finish()
    assert output.read_text() == "mine"
    output.unlink()
    assert work(source, output, about={}).rows == 9

    other = output.with_name("other.jsonl")
    folder = claim(other)
    folder.mkdir()
    (folder / "mine").write_text("mine")
    with pytest.raises(BatchError, match="mine"):
        Job(source, other, about={})
    with pytest.raises(BatchError, match="folder"):
        Job(source, output.parent / "missing" / "out.jsonl", about={})


def test_an_input_that_changes_while_it_is_read_is_noticed(source, output):
    job = Job(source, output, about={})
    job.run(capitals)
    source.path.write_text(source.path.read_text().replace("text 3", "text 4"))
    with pytest.raises(BatchError, match="line 4"):
        job.finish()
    assert not output.exists()


def test_a_stream_is_kept_and_must_be_the_same(tmp_path, source, output):
    with source.path.open("rb") as stream:
        kept = Source(spool(stream, output), "jsonl")
    Job(kept, output, about={}, stopping=lambda: True).journal.close()
    with source.path.open("rb") as stream:
        spool(stream, output)
    with Path(os.devnull).open("rb") as stream, pytest.raises(BatchError, match="standard input"):
        spool(stream, output)
    assert work(kept, output, about={}).rows == 9


def test_what_was_cut_short_after_the_end_is_only_cleared_up(source, output, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            work(source, output, about={})
    whole = output.read_bytes()
    assert claim(output).is_dir()
    summary = work(source, output, answer=lambda texts: [], about={})
    assert (summary.rows, summary.failed) == (9, 1)
    assert output.read_bytes() == whole
    assert not claim(output.with_name("else")).exists()


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("calls", range(8))
def test_what_is_left_of_a_finished_job_stops_no_other(tmp_path, source, output, monkeypatch, calls, moved):
    """The clearing up is cut short after so many steps; whatever stands there, the next run is free to begin."""
    left = calls

    def until_cut(remove):
        def step(*args, **kwargs):
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            return remove(*args, **kwargs)

        return step

    with source.path.open("rb") as stream:
        kept = Source(spool(stream, output), "jsonl")
    job = Job(kept, output, about={})
    job.run(capitals)
    with monkeypatch.context() as patch:
        rename = Path.rename

        def renamed(path, to):
            rename(path, to)
            for name in ("unlink", "rmdir"):
                patch.setattr(Path, name, until_cut(getattr(Path, name)))

        patch.setattr(Path, "rename", renamed)
        with pytest.raises(KeyboardInterrupt) if calls < 7 else nullcontext():
            job.finish()
    whole = output.read_bytes()
    if moved:
        output.rename(tmp_path / "moved.jsonl")
        with owned(output), source.path.open("rb") as stream:
            assert work(Source(spool(stream, output), "jsonl"), output, about={"task": "another"}).rows == 9
    else:
        with pytest.raises(BatchError, match="exists"), owned(output):
            pass
    assert output.read_bytes() == whole
    assert {path.name for path in tmp_path.iterdir()} - {"moved.jsonl"} == {"in.jsonl", "out.jsonl"}


@pytest.mark.parametrize("kind", ["file", "empty", "full"])
def test_what_is_beside_an_output_is_let_be(source, output, kind):
    beside = output.with_name(f"{output.name}.done")
    if kind == "file":
        beside.write_text("mine")
    else:
        beside.mkdir()
        if kind == "full":
            (beside / "mine").write_text("mine")
    with owned(output):
        job = Job(source, output, about={})
        (claim(output) / "mine").write_text("mine")
        job.run(capitals)
        assert job.finish().rows == 9
    assert beside.exists()
    assert kind != "full" or (beside / "mine").exists()
    assert [path.name for path in claim(output.with_name("else")).parent.glob("*.partial/*")] == ["mine"]


@pytest.mark.parametrize("to", ["folder", "nowhere"])
def test_a_link_in_place_of_the_folder_is_refused_before_any_work(tmp_path, source, output, to):
    (tmp_path / "folder").mkdir()
    claim(output).symlink_to(tmp_path / to)
    for begin in (lambda: owned(output).__enter__(), lambda: Job(source, output, about={})):
        with pytest.raises(BatchError, match="symbolic link") as error:
            begin()
        assert "\n" not in str(error.value)
    assert output.with_name(f"{output.name}.partial").is_symlink()
    assert not any((tmp_path / "folder").iterdir())


def test_what_was_measured_is_kept_and_not_compared(source, output):
    Job(source, output, about={}, measure=lambda: {"seconds": 1.5}).journal.close()
    job = Job(source, output, about={}, measure=lambda: pytest.fail("measured again"))
    assert job.measured == {"seconds": 1.5}
    job.run(capitals)
    assert job.finish().rows == 9


def test_a_folder_where_nothing_was_begun_is_not_left_behind(output):
    with pytest.raises(KeyError), owned(output):
        raise KeyError
    assert not claim(output).exists()
