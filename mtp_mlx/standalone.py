"""The rival of the MTP head: a small model with embeddings, a KV cache and a prefill of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from mtp_mlx import bound, cpu
from mtp_mlx.head import dense_weight

if TYPE_CHECKING:
    from mtp_mlx.backbone import Backbone

KIND = "standalone-drafter"
RETRAIN = "train one for it (mtp-mlx train --drafter standalone), or use another --drafter"


@dataclass(frozen=True)
class StandaloneConfig:
    """What a standalone drafter is, and what it is bound to.

    Attributes:
        layers: the backbone layers that its own ones started from.
        backbone: the fingerprint of the backbone it was trained on.
        vocab: SHA-256 of the token map (text → id) that its ids belong to.
        frequent, acceptance: as a head's; see ``head.HeadConfig``.
    """

    layers: tuple[int, ...]
    backbone: str
    vocab: str
    frequent: int | None = None
    acceptance: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        bound.check_chances(*self.acceptance.values())


class Standalone(nn.Module):
    """An mlx-lm model of the backbone's own kind with fewer layers; ``model`` drafts for mlx-lm as it is."""

    def __init__(self, backbone: Backbone, config: StandaloneConfig, draft_vocab: mx.array):
        """Start as the backbone's layers ``config.layers`` between copies of its embeddings and final norm.

        ``draft_vocab``: (n,) int32, the ids that a draft may hold besides the prompt's own.
        """
        super().__init__()
        kinds = getattr(backbone.args, "layer_types", None)
        chosen = {} if kinds is None else {"layer_types": [kinds[i] for i in config.layers]}
        arguments = replace(backbone.args, num_hidden_layers=len(config.layers), **chosen)
        self.config = config
        self.draft_vocab = draft_vocab
        self.model: Any = type(backbone.model)(arguments)
        _copy(backbone.model.model.embed_tokens, self.model.model.embed_tokens)
        _copy(backbone.model.model.norm, self.model.model.norm)
        if backbone.untied:
            _copy(backbone.model.lm_head, self.model.lm_head)
        for mine, source in zip(self.model.layers, config.layers, strict=True):
            _copy(backbone.model.layers[source], mine)
        # What is the backbone's stays the backbone's: it is not trained, and not stored a second time.
        self.freeze(keys=["draft_vocab"], recurse=False)
        self.model.model.embed_tokens.freeze()
        if backbone.untied:
            self.model.lm_head.freeze()


def _copy(theirs: Any, mine: Any) -> None:
    """Copy the weights of every module below ``theirs`` to its namesake below ``mine``, de-quantised."""
    sources = dict(theirs.named_modules())
    for name, module in mine.named_modules():
        if "weight" in module:
            module.weight = mx.array(dense_weight(sources[name]), mx.float32)
        if "bias" in module:
            module.bias = mx.array(sources[name].bias, mx.float32)


def save_standalone(drafter: Standalone, folder: Path) -> None:
    """Write config.json, model.safetensors (float16; without the embeddings) and SHA256SUMS."""
    trained: Any = tree_flatten(drafter.trainable_parameters())
    arrays = {**dict(trained), "draft_vocab": drafter.draft_vocab}
    bound.save(folder, model_type=KIND, config=drafter.config, arrays=arrays)


def load_standalone(folder: Path, backbone: Backbone) -> Standalone:
    """Load a standalone drafter for ``backbone``; its embeddings are a copy of the backbone's.

    Raises:
        WeightsError: missing, damaged, or made for another backbone or vocabulary.
    """
    config, arrays = bound.read(folder, StandaloneConfig, model_type=KIND, what="standalone drafter", cure=RETRAIN)
    bound.check(folder, config, arrays, backbone, layers=config.layers, cure=RETRAIN)
    with bound.readable(folder, what="standalone drafter", cure=RETRAIN):
        drafter = Standalone(backbone, config, arrays["draft_vocab"])
        missing = {name for name, _ in tree_flatten(drafter.trainable_parameters())} - set(arrays)
        if missing:
            raise ValueError(f"{sorted(missing)[0]} is missing")
        drafter.load_weights(list(arrays.items()), strict=False)
        cpu.adapt(drafter)
    drafter.set_dtype(backbone.dtype)
    drafter.eval()
    mx.eval(drafter.parameters())
    return drafter
