"""The arms that are not ours: llama.cpp over the same weights, where it is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mtp_mlx.arms import LLAMA_CPP, Case, make_arms
from mtp_mlx.backbone import Backbone
from mtp_mlx.bench import Bench, measure
from mtp_mlx.cli import main
from mtp_mlx.pipeline import Pipeline

CASES = [Case([5, 6, 7, 8, 9], 12), Case([11, 12, 13], 9)]


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


def test_llama_cpp_decodes_the_same_prompts(tiny, tiny_gguf):
    """The same float32 weights give the same ids, from a cold start each time."""
    bench = Bench(make_arms(Pipeline(tiny), ["plain", LLAMA_CPP], gguf=tiny_gguf), tiny.nbytes)
    list(bench.run([*CASES, CASES[0]]))
    row = bench.to_json()["arms"][LLAMA_CPP]
    assert row["identical"] == 3
    assert row["passes"] == row["tokens"]
    assert row["peak_bytes"] == row["bytes_per_token"]
    assert row["bytes_per_token"] == pytest.approx(tiny.nbytes, rel=0.01)


def test_llama_cpp_stops_at_the_models_end_of_text(tiny, tiny_gguf, monkeypatch):
    (arm,) = make_arms(Pipeline(tiny), [LLAMA_CPP], gguf=tiny_gguf)
    ids = measure(arm, CASES[0]).ids
    assert len(ids) == CASES[0].most
    monkeypatch.setattr(tiny, "eos", frozenset((ids[4],)))
    assert measure(arm, CASES[0]).ids == ids[: ids.index(ids[4]) + 1]


@pytest.mark.parametrize("other", [{"swapped": True}, {"layers": 3}])
def test_llama_cpp_refuses_another_model(tiny, tmp_path, other):
    pytest.importorskip("llama_cpp")
    path = write_gguf(tiny, tmp_path / "tiny.gguf", **other)
    with pytest.raises(ValueError, match="another model"):
        make_arms(Pipeline(tiny), [LLAMA_CPP], gguf=path)


def test_llama_cpp_refuses_what_is_no_gguf(tiny, tmp_path):
    pytest.importorskip("llama_cpp")
    (tmp_path / "x.gguf").write_bytes(b"nothing")
    for path in (tmp_path / "x.gguf", tmp_path / "none.gguf", None):
        with pytest.raises(ValueError, match=path.name if path else "--gguf"):
            make_arms(Pipeline(tiny), [LLAMA_CPP], gguf=path)


def test_without_llama_cpp_a_line_says_what_to_install(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)  # as where it is not installed
    for options in (["--arms", LLAMA_CPP], ["--gguf", str(tmp_path / "x.gguf")]):
        assert main(["bench", "--task", "proofread", *options]) == 1
        out, err = capsys.readouterr()
        assert "pip install llama-cpp-python" in err
        assert (out, err.count("\n")) == ("", 1)
