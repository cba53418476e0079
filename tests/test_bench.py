"""The bench: every arm decodes the same prompts, and the sums are what each arm did."""

import json
import sys
from pathlib import Path

import gguf
import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mtp_mlx.backbone import Backbone
from mtp_mlx.bench import ARMS, LLAMA_CPP, PLAIN, STANDALONE, Arm, Bench, Pass, make_arms, measure, plot, table
from mtp_mlx.cli import main
from mtp_mlx.decode import plain
from mtp_mlx.events import Round
from mtp_mlx.head import HeadConfig, MTPHead
from mtp_mlx.pipeline import Pipeline
from mtp_mlx.standalone import Standalone, StandaloneConfig, save_standalone

PROMPTS = [([5, 6, 7, 8, 9], 12), ([11, 12, 13], 9)]
OURS = [name for name in ARMS if name != LLAMA_CPP]  # ours and mlx-lm's: what is always there


@pytest.fixture(scope="module")
def pipeline(tiny, tmp_path_factory):
    """A pipeline with an untrained head and standalone drafter."""
    folder = tmp_path_factory.mktemp("standalone")
    vocabulary = mx.arange(512)
    save_standalone(Standalone(tiny, StandaloneConfig((0, 3), tiny.fingerprint, tiny.vocab_hash), vocabulary), folder)
    head = MTPHead(HeadConfig.for_backbone(tiny, kv_layers=(1, 3)), vocabulary)
    head.copy_from(tiny)
    return Pipeline(tiny, head, standalone=folder)


@pytest.fixture(scope="module")
def bench(pipeline):
    bench = Bench(make_arms(pipeline, OURS, width=8, draft_length=4), pipeline.backbone.nbytes)
    assert len(list(bench.run(PROMPTS))) == len(PROMPTS)
    return bench


def test_every_arm_writes_the_models_own_text(bench, tiny):
    wanted = [
        [id for event in plain(tiny, prompt, max_tokens=most) if isinstance(event, Round) for id in event.committed]
        for prompt, most in PROMPTS
    ]
    assert set(bench.timings) == set(OURS)
    for name, timings in bench.timings.items():
        for timing, ids in zip(timings, wanted, strict=True):
            assert list(timing.ids) == ids, name
            assert timing.passes == len(ids) if name in PLAIN else timing.passes <= len(ids)
            assert (timing.drafted == 0) == (name in PLAIN)
            assert 0 < timing.first_seconds <= timing.seconds


def test_the_result_says_who_is_fastest_and_by_how_much(bench, tiny):
    result = bench.to_json()
    arms = result["arms"]
    assert result["prompts"] == len(PROMPTS)
    assert result["fastest_plain"] == max(PLAIN, key=lambda name: arms[name]["tokens_per_s"])
    assert result["ratio"][result["fastest_plain"]] == result["ratio_end_to_end"][result["fastest_plain"]] == 1
    for name, row in arms.items():
        assert row["identical"] == len(PROMPTS)
        assert row["quartiles"][0] <= row["tokens_per_s"] <= row["quartiles"][1]
        assert row["tokens"] == sum(len(t.ids) for t in bench.timings[name])
        assert row["peak_bytes"] >= tiny.nbytes
        assert result["ratio"][name] > 0
    assert arms["plain"]["bytes_per_token"] == tiny.nbytes
    assert arms["mtp"]["bytes_per_token"] > tiny.nbytes * arms["mtp"]["passes"] / arms["mtp"]["tokens"]
    json.dumps(result)


def test_a_table_and_a_picture_show_every_arm(bench, tmp_path):
    result = bench.to_json()
    lines = table(result).splitlines()
    assert len(lines) == 2 + len(OURS)
    assert len({line.count("|") for line in lines}) == 1
    plot(result, tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_rates_leave_out_the_first_pass_and_ids_are_compared():
    """A scripted arm: its second pass commits three ids, and they are not the reference's."""
    right = Arm("plain", lambda prompt, most: iter([Pass((1,)), Pass((2,)), Pass((3,)), Pass((4,))]), weights=10)
    wrong = Arm("mtp", lambda prompt, most: iter([Pass((1,), 4), Pass((2, 3, 5), 4)]), weights=12, draft_bytes=3)
    timing = measure(wrong, [1], max_tokens=4)
    assert (timing.ids, timing.passes, timing.drafted) == ((1, 2, 3, 5), 2, 8)
    assert timing.rate == pytest.approx(3 / (timing.seconds - timing.first_seconds))
    bench = Bench([right, wrong], pass_bytes=100)
    list(bench.run([([1], 4), ([1], 4)]))
    result = bench.to_json()
    assert [result["arms"][name]["identical"] for name in ("plain", "mtp")] == [2, 0]
    assert result["arms"]["mtp"]["bytes_per_token"] == (2 * 100 + 8 * 3) / 4
    assert result["arms"]["plain"]["bytes_per_token"] == 100


def test_an_answer_of_one_pass_has_no_rate(tmp_path):
    once = Arm("plain", lambda prompt, most: iter([Pass((2,))]), weights=1)
    assert measure(once, [1], max_tokens=1).rate is None
    bench = Bench([once], pass_bytes=1)
    list(bench.run([([1], 1)]))
    result = bench.to_json()
    assert result["arms"]["plain"]["tokens_per_s"] is result["fastest_plain"] is result["ratio"]["plain"] is None
    assert "?" in table(result)
    plot(result, tmp_path / "bench.png")


def test_a_pass_of_mlx_lms_speculative_decode_ends_with_the_models_own_token(pipeline, monkeypatch):
    eos = next(iter(pipeline.backbone.eos))
    yielded = [(5, True), (6, True), (7, False), (8, False), (9, True), (eos, True), (4, True)]  # 4: never asked for

    def scripted(prompt, model, draft_model, *, num_draft_tokens, max_tokens):
        yield from ((id, None, from_draft) for id, from_draft in yielded)

    monkeypatch.setattr("mtp_mlx.bench.speculative_generate_step", scripted)
    (arm,) = make_arms(pipeline, ["mlx-lm-speculative"], width=8, draft_length=4)
    passes = list(arm.decode([1, 2], 7))
    assert [p.ids for p in passes] == [(5, 6, 7), (8,), (9, eos)]
    assert [p.drafted for p in passes] == [4, 4, 3]


def write_gguf(backbone: Backbone, path: Path, *, swapped: bool = False, layers: int = 4) -> Path:
    """The tiny model in float32 as llama.cpp reads it, q and k rows in its order; ``swapped``: two tokens changed."""
    args, names = backbone.args, gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 4)
    half = args.hidden_size // args.num_attention_heads // 2  # of a head: what RoPE pairs with the other half
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(layers)
    writer.add_context_length(256)
    writer.add_embedding_length(args.hidden_size)
    writer.add_feed_forward_length(args.intermediate_size)
    writer.add_head_count(args.num_attention_heads)
    writer.add_head_count_kv(args.num_key_value_heads)
    writer.add_rope_freq_base(args.rope_theta)
    writer.add_layer_norm_rms_eps(args.rms_norm_eps)
    vocabulary = backbone.tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=lambda text: vocabulary[text])
    if swapped:
        tokens[300], tokens[301] = tokens[301], tokens[300]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
    writer.add_token_merges(["a b"])
    for name, array in tree_flatten(backbone.model.parameters()):
        stored = names.get_name(name, try_suffixes=(".weight",))
        values = np.array(array.astype(mx.float32))
        if stored.endswith(("attn_q.weight", "attn_k.weight")):
            values = values.reshape(-1, 2, half, args.hidden_size).swapaxes(1, 2).reshape(values.shape)
        if not stored.startswith(f"blk.{layers}."):
            writer.add_tensor(stored, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def tiny_gguf(tiny, tmp_path_factory):
    """Where llama.cpp is installed only."""
    pytest.importorskip("llama_cpp")
    return write_gguf(tiny, tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_llama_cpp_decodes_the_same_prompts(pipeline, tiny_gguf):
    """The same float32 weights give the same ids, from a cold start each time."""
    arms = make_arms(pipeline, ["plain", LLAMA_CPP], width=8, draft_length=4, gguf=tiny_gguf)
    bench = Bench(arms, pipeline.backbone.nbytes)
    list(bench.run([*PROMPTS, PROMPTS[0]]))
    row = bench.to_json()["arms"][LLAMA_CPP]
    assert row["identical"] == 3
    assert row["passes"] == row["tokens"]
    assert row["peak_bytes"] == row["bytes_per_token"]
    assert row["bytes_per_token"] == pytest.approx(pipeline.backbone.nbytes, rel=0.01)


def test_llama_cpp_stops_at_the_models_end_of_text(tiny, tiny_gguf, monkeypatch):
    (arm,) = make_arms(Pipeline(tiny), [LLAMA_CPP], width=8, draft_length=4, gguf=tiny_gguf)
    ids = measure(arm, PROMPTS[0][0], max_tokens=PROMPTS[0][1]).ids
    assert len(ids) == PROMPTS[0][1]
    monkeypatch.setattr(tiny, "eos", frozenset((ids[4],)))
    assert measure(arm, PROMPTS[0][0], max_tokens=PROMPTS[0][1]).ids == ids[: ids.index(ids[4]) + 1]


@pytest.mark.parametrize("other", [{"swapped": True}, {"layers": 3}])
def test_llama_cpp_refuses_another_model(pipeline, tmp_path, other):
    pytest.importorskip("llama_cpp")
    path = write_gguf(pipeline.backbone, tmp_path / "tiny.gguf", **other)
    with pytest.raises(ValueError, match="another model"):
        make_arms(pipeline, [LLAMA_CPP], width=8, draft_length=4, gguf=path)


def test_llama_cpp_refuses_what_is_no_gguf(pipeline, tmp_path):
    pytest.importorskip("llama_cpp")
    (tmp_path / "x.gguf").write_bytes(b"nothing")
    for path in (tmp_path / "x.gguf", tmp_path / "none.gguf", None):
        with pytest.raises(ValueError, match=path.name if path else "--gguf"):
            make_arms(pipeline, [LLAMA_CPP], width=8, draft_length=4, gguf=path)


def test_without_llama_cpp_a_line_says_what_to_install(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)  # as where it is not installed
    for options in (["--arms", LLAMA_CPP], ["--gguf", str(tmp_path / "x.gguf")]):
        assert main(["bench", "--task", "proofread", *options]) == 1
        out, err = capsys.readouterr()
        assert "pip install llama-cpp-python" in err
        assert (out, err.count("\n")) == ("", 1)


def test_without_a_plain_arm_there_is_no_ratio(pipeline):
    bench = Bench(make_arms(pipeline, ["lookup"], width=4, draft_length=3), pipeline.backbone.nbytes)
    list(bench.run(PROMPTS[:1]))
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
def test_what_cannot_be_measured_is_refused_in_a_line(capsys, options, said):
    assert main(["bench", "--task", "proofread", *options]) == 1
    out, err = capsys.readouterr()
    assert said in err
    assert (out, err.count("\n")) == ("", 1)


def test_a_text_that_cannot_be_measured_is_named(capsys, tmp_path):
    data = tmp_path / "texts.jsonl"
    data.write_text('{"text": "helo"}\n{"text": " "}\n', encoding="utf-8")
    assert main(["bench", "--task", "proofread", "--data", str(data), "--arms", "plain"]) == 1
    assert "texts.jsonl, line 2" in capsys.readouterr().err


def test_the_command_measures_what_it_is_asked_to(capsys, tmp_path):
    data = tmp_path / "texts.jsonl"
    data.write_text('{"text": "helo wrld"}\n{"text": "no"}\n', encoding="utf-8")
    options = ["--limit", "1", "--max-tokens", "6", "--arms", "plain,mtp", "--plot", str(tmp_path / "bench.png")]
    assert main(["bench", "--task", "proofread", "--data", str(data), *options, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert list(result["arms"]) == ["plain", "mtp"]
    assert result["prompts"] == result["arms"]["mtp"]["identical"] == 1
    assert (tmp_path / "bench.png").is_file()
    assert main(["bench", "--data", str(data)]) == 1
    assert "--task" in capsys.readouterr().err


def test_arms_without_weights_are_left_out_by_default(capsys, tmp_path):
    options = ["--task", "proofread", "--limit", "1", "--max-tokens", "2", "--standalone", str(tmp_path / "none")]
    assert main(["bench", *options, "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["arms"]) == set(OURS) - set(STANDALONE)
