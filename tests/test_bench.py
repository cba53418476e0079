"""The bench: every arm decodes the same prompts, and the sums are what each arm did."""

import json

import pytest

from mtp_mlx.arms import ARMS, PLAIN, STANDALONE, Arm, Case, Pass, make_arms
from mtp_mlx.bench import Bench, measure, plot, table
from mtp_mlx.cli import main
from mtp_mlx.decode import plain
from mtp_mlx.events import Round
from mtp_mlx.head import load_head
from mtp_mlx.pipeline import Pipeline

NAMES = (*ARMS, "mtp-reduced")
CASES = [Case([5, 6, 7, 8, 9], 12), Case([11, 12, 13], 9)]


@pytest.fixture(scope="module")
def pipeline(tiny, tiny_drafters):
    """A pipeline with an untrained head and standalone drafter."""
    head, standalone = tiny_drafters
    return Pipeline(tiny, load_head(head, tiny), standalone=standalone)


@pytest.fixture
def bench_command(tiny, tiny_drafters):
    """``mtp-mlx bench`` over the tiny model: its exit code."""
    folders = zip(("--backbone", "--head", "--standalone"), (tiny.path, *tiny_drafters), strict=True)
    weights = [str(word) for pair in folders for word in pair]
    return lambda *words: main(["bench", *weights, *map(str, words)])


@pytest.fixture(scope="module")
def bench(pipeline):
    bench = Bench(make_arms(pipeline, NAMES, width=8, draft_length=4), pipeline.backbone.nbytes)
    assert len(list(bench.run(CASES))) == len(CASES)
    return bench


def test_every_arm_writes_the_models_own_text(bench, tiny):
    wanted = [
        [
            id
            for event in plain(tiny, case.ids, max_tokens=case.most)
            if isinstance(event, Round)
            for id in event.committed
        ]
        for case in CASES
    ]
    assert set(bench.timings) == set(NAMES)
    for name, timings in bench.timings.items():
        for timing, ids in zip(timings, wanted, strict=True):
            assert list(timing.ids) == ids, name
            assert timing.passes == len(ids) - 1 if name in PLAIN else timing.passes < len(ids)
            assert timing.drafted == 0 if name in PLAIN else timing.drafted > 0 or name == "lookup"
            assert 0 < timing.first_seconds <= timing.seconds


def test_the_result_says_who_is_fastest_and_by_how_much(bench, tiny):
    result = bench.to_json()
    arms = result["arms"]
    assert result["prompts"] == len(CASES)
    assert result["fastest_plain"] == max(PLAIN, key=lambda name: arms[name]["tokens_per_s"])
    assert result["ratio"][result["fastest_plain"]] == result["ratio_end_to_end"][result["fastest_plain"]] == 1
    for name, row in arms.items():
        assert row["identical"] == len(CASES)
        assert row["quartiles"][0] <= row["tokens_per_s"] <= row["quartiles"][1]
        assert row["tokens"] == sum(len(t.ids) for t in bench.timings[name])
        assert row["peak_bytes"] >= tiny.nbytes
        assert result["ratio"][name] > 0
    assert arms["plain"]["bytes_per_token"] == tiny.nbytes
    assert arms["mtp"]["bytes_per_token"] > tiny.nbytes / arms["mtp"]["tokens_per_pass"]
    assert arms["mtp"]["tokens_per_pass"] >= arms["plain"]["tokens_per_pass"] == 1
    json.dumps(result)


def test_a_table_and_a_picture_show_every_arm(bench, tmp_path):
    result = bench.to_json()
    lines = table(result).splitlines()
    assert len(lines) == 2 + len(bench.arms)
    assert len({line.count("|") for line in lines}) == 1
    plot(result, tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_rates_leave_out_the_first_pass_and_ids_are_compared():
    """A scripted arm: its second pass commits three ids, and they are not the reference's."""
    right = Arm("plain", lambda case: iter([Pass((1,)), Pass((2,)), Pass((3,)), Pass((4,))]), weights=10)
    wrong = Arm("mtp", lambda case: iter([Pass((1,), 4), Pass((2, 3, 5), 4)]), weights=12, draft_bytes=3)
    timing = measure(wrong, Case([1], 4))
    assert (timing.ids, timing.later, timing.passes, timing.drafted) == ((1, 2, 3, 5), 3, 1, 4)
    assert timing.rate == pytest.approx(3 / (timing.seconds - timing.first_seconds))
    bench = Bench([right, wrong], pass_bytes=100)
    list(bench.run([Case([1], 4), Case([1], 4)]))
    result = bench.to_json()
    assert [result["arms"][name]["identical"] for name in ("plain", "mtp")] == [2, 0]
    assert result["arms"]["mtp"]["bytes_per_token"] == (100 + 4 * 3) / 3
    assert result["arms"]["plain"]["bytes_per_token"] == 100


def test_an_answer_of_one_pass_has_no_rate(tmp_path):
    once = Arm("plain", lambda case: iter([Pass((2,))]), weights=1)
    assert measure(once, Case([1], 1)).rate is None
    bench = Bench([once], pass_bytes=1)
    list(bench.run([Case([1], 1)]))
    result = bench.to_json()
    assert result["arms"]["plain"]["tokens_per_s"] is result["fastest_plain"] is result["ratio"]["plain"] is None
    assert "?" in table(result)
    plot(result, tmp_path / "bench.png")


def test_a_pass_of_mlx_lms_speculative_decode_ends_with_the_models_own_token(pipeline, monkeypatch):
    eos = next(iter(pipeline.backbone.eos))
    yielded = [(5, True), (6, True), (7, False), (8, False), (9, True), (eos, True), (4, True)]  # 4: never asked for

    def scripted(prompt, model, draft_model, *, num_draft_tokens, max_tokens):
        yield from ((id, None, from_draft) for id, from_draft in yielded)

    monkeypatch.setattr("mtp_mlx.arms.speculative_generate_step", scripted)
    (arm,) = make_arms(pipeline, ["mlx-lm-speculative"], width=8, draft_length=4)
    passes = list(arm.decode(Case([1, 2], 7)))
    assert [p.ids for p in passes] == [(5, 6, 7), (8,), (9, eos)]
    assert [p.drafted for p in passes] == [4, 4, 3]


def test_without_a_plain_arm_there_is_no_ratio(pipeline):
    bench = Bench(make_arms(pipeline, ["lookup"], width=4, draft_length=3), pipeline.backbone.nbytes)
    list(bench.run(CASES[:1]))
    result = bench.to_json()
    assert result["fastest_plain"] is None
    assert result["ratio"] == {"lookup": None}
    assert "lookup" in table(result)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--arms", "warp"], "mlx-lm"),
        (["--arms", ""], "mlx-lm"),
        (["--arms", "mtp,plain,mtp"], "twice"),
        (["--plot", "nowhere/bench.png"], ".png"),
        (["--plot", "bench.txt"], ".png"),
        (["--data", "none.jsonl"], "none.jsonl"),
        (["--draft-length", "9"], "draft length"),
        (["--max-tokens", "9000"], "example 1"),
        (["--arms", "mtp", "--head", "nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_line(bench_command, capsys, options, said):
    assert bench_command("--task", "proofread", *options) == 1
    out, err = capsys.readouterr()
    assert said in err
    assert (out, err.count("\n")) == ("", 1)


def test_a_text_that_cannot_be_measured_is_named(bench_command, capsys, tmp_path):
    data = tmp_path / "texts.jsonl"
    data.write_text('{"text": "helo"}\n{"text": " "}\n', encoding="utf-8")
    assert bench_command("--task", "proofread", "--data", data, "--arms", "plain") == 1
    assert "texts.jsonl, line 2" in capsys.readouterr().err


def test_the_command_measures_what_it_is_asked_to(bench_command, capsys, tmp_path):
    data = tmp_path / "texts.jsonl"
    data.write_text('{"text": "helo wrld"}\n{"text": "no"}\n', encoding="utf-8")
    options = ["--limit", "1", "--max-tokens", "6", "--arms", "plain,mtp", "--plot", tmp_path / "bench.png"]
    assert bench_command("--task", "proofread", "--data", data, *options, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert list(result["arms"]) == ["plain", "mtp"]
    assert result["prompts"] == result["arms"]["mtp"]["identical"] == 1
    assert (tmp_path / "bench.png").is_file()
    assert bench_command("--data", data) == 1
    assert "--task" in capsys.readouterr().err


def test_arms_without_weights_are_left_out_by_default(bench_command, capsys, tmp_path):
    options = ["--task", "proofread", "--limit", "1", "--max-tokens", "2", "--standalone", tmp_path / "none"]
    assert bench_command(*options, "--json") == 0
    assert set(json.loads(capsys.readouterr().out)["arms"]) == set(ARMS) - set(STANDALONE)
