"""Models of other families than the shipped one: the same promise, and a head can be made for them."""

from __future__ import annotations

import shutil
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import llama, qwen2, qwen3
from test_decode import committed, compare

from mtp_mlx import cpu
from mtp_mlx.backbone import Backbone
from mtp_mlx.decode import plain, speculative
from mtp_mlx.drafters.mtp import MTPDrafter
from mtp_mlx.drafters.standalone import StandaloneDrafter
from mtp_mlx.head import HeadConfig, MTPHead
from mtp_mlx.standalone import Standalone, StandaloneConfig

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 512,
    "max_position_embeddings": 512,
}
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 5, "num_hidden_layers": 4}
DYNAMIC = {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}
FAMILIES = {
    "qwen2": (qwen2, {"tie_word_embeddings": False}),
    "qwen3": (qwen3, {"head_dim": 32, "rope_theta": 10000.0, "tie_word_embeddings": True}),
    "llama, windows": (llama, WINDOWS),
    "llama, dynamic positions": (llama, DYNAMIC),
}
PROMPT = [11, 4, 301, 7, 22, 500, 5, 17, 40]


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Any:
    module, more = FAMILIES[request.param]
    mx.random.seed(3)
    made = module.Model(module.ModelArgs(model_type=module.__name__.rpartition(".")[2], **SHAPE | more))
    mx.eval(made.parameters())
    cpu.adapt(made)
    return made.eval()


@pytest.mark.parametrize("compiled", [False, True])
def test_decode_is_exact_with_a_head_and_without(tiny: Backbone, model: Any, compiled: bool):
    if compiled and shutil.which("g++") is None:
        pytest.skip("on the CPU, MLX compiles with g++")
    backbone = Backbone(model, tiny.tokenizer, tiny.path, compiled=compiled)
    assert compare(backbone, PROMPT, width=4, lengths=[0, 1, 3], max_tokens=9, seed=1)

    layers = (0, len(model.layers) - 1)
    head = MTPHead(HeadConfig.for_backbone(backbone, kv_layers=layers), mx.arange(400))
    head.copy_from(backbone)
    rival = Standalone(backbone, StandaloneConfig(layers, "", ""), mx.arange(400))
    text = committed(plain(backbone, PROMPT, max_tokens=12, width=4))
    for drafter in (MTPDrafter(head, backbone), StandaloneDrafter(rival, backbone)):
        assert committed(speculative(backbone, PROMPT, drafter=drafter, max_tokens=12, width=4)) == text
    assert backbone.kv_nbytes(100) == sum(k.nbytes + v.nbytes for k, v in filled(backbone, 100))


def filled(backbone: Backbone, rows: int) -> list[tuple[mx.array, mx.array]]:
    kv = backbone.make_kv(rows)
    backbone.prefill(PROMPT, kv)
    return kv.buffers
