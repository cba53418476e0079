"""The MTP head: a few Q-only layers that read the backbone's last state and its KV cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.rope_utils import initialize_rope

from mtp_mlx import bound, cpu
from mtp_mlx.cpu import powers
from mtp_mlx.tasks import TASKS

if TYPE_CHECKING:
    from mtp_mlx.backbone import Backbone

KIND = "mtp-head"
RETRAIN = "train a head for it (mtp-mlx train), or use --drafter lookup"
# The pre-projection starts as [0.1 · I | I]: the state passes through, the token is a hint (DESIGN: C4).
EMBED_SHARE = 0.1


@dataclass(frozen=True)
class HeadConfig:
    """The shape of a head, and what it is bound to.

    Attributes:
        kv_layers: for each head layer, the backbone layer whose K/V it reads.
        backbone: the fingerprint of the backbone it was trained on.
        vocab: SHA-256 of the token map (text → id) that its ids belong to.
        copy_chance: how often prompt lookup was right on the training answers, by the length of its match; what
            joined drafting weighs the head's probabilities against. One half: not measured.
        frequent: how many ids of the draft vocabulary stand before those in clusters, if it has centroids; see
            ``drafters.vocabulary``.
        acceptance: for each task how often each position of a draft was accepted on texts that it never saw, if those
            before it were; what the draft length starts from.
    """

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_traditional: bool
    rope_scaling: dict[str, Any] | None
    max_position_embeddings: int | None
    kv_layers: tuple[int, ...]
    backbone: str
    vocab: str
    copy_chance: tuple[float, ...] = (0.5,) * 8
    frequent: int | None = None
    acceptance: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        bound.check_chances(self.copy_chance, *self.acceptance.values())
        if not self.rope_theta > 0:
            raise ValueError(f"rope_theta is {self.rope_theta}")

    @classmethod
    def for_backbone(cls, backbone: Backbone, *, kv_layers: Sequence[int], frequent: int | None = None) -> HeadConfig:
        """The same widths as the backbone, so that its layers can be copied in."""
        args = backbone.args
        return cls(
            hidden_size=args.hidden_size,
            intermediate_size=args.intermediate_size,
            num_attention_heads=args.num_attention_heads,
            num_key_value_heads=args.num_key_value_heads,
            head_dim=backbone.head_dim,
            rms_norm_eps=args.rms_norm_eps,
            rope_theta=args.rope_theta,
            rope_traditional=getattr(args, "rope_traditional", False),
            rope_scaling=args.rope_scaling,
            max_position_embeddings=args.max_position_embeddings,
            kv_layers=tuple(kv_layers),
            backbone=backbone.fingerprint,
            vocab=backbone.vocab_hash,
            frequent=frequent,
        )


class QueryAttention(nn.Module):
    """Attention that has queries only: keys and values are the backbone's, already rotated."""

    def __init__(self, config: HeadConfig):
        super().__init__()
        self.heads = config.num_attention_heads
        self.scale = config.head_dim**-0.5
        wide = config.num_attention_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, wide, bias=False)
        self.o_proj = nn.Linear(wide, config.hidden_size, bias=False)
        self.rope: Any = initialize_rope(
            config.head_dim,
            config.rope_theta,
            config.rope_traditional,
            config.rope_scaling,
            config.max_position_embeddings,
        )

    def __call__(
        self, x: mx.array, keys: mx.array, values: mx.array, *, offset: int | mx.array, mask: mx.array | None
    ) -> mx.array:
        """x (batch, rows, dim), keys and values (batch, kv_heads, n, head_dim) → (batch, rows, dim)."""
        batch, rows, _ = x.shape
        queries = self.queries(x, offset=offset)
        out = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=self.scale, mask=mask)
        return self.o_proj(out.transpose(0, 2, 1, 3).reshape(batch, rows, -1))

    def queries(self, x: mx.array, *, offset: int | mx.array) -> mx.array:
        """(batch, rows, dim) → (batch, heads, rows, head_dim), rotated."""
        batch, rows, _ = x.shape
        queries = self.q_proj(x).reshape(batch, rows, self.heads, -1).transpose(0, 2, 1, 3)
        return self.rope(queries, offset=offset)

    def shares(self, x: mx.array, keys: mx.array, *, offset: int | mx.array) -> mx.array:
        """The share of attention that each key gets: keys (batch, kv_heads, n, head_dim) → (batch, heads, rows, n)."""
        keys = mx.repeat(keys, self.heads // keys.shape[1], axis=1)  # a KV head serves the queries of its group
        scores = self.scale * self.queries(x, offset=offset) @ keys.swapaxes(-1, -2)
        return mx.softmax(scores, axis=-1, precise=True)


class HeadLayer(nn.Module):
    """Q-only attention over one backbone layer's K/V, then SwiGLU, each behind a norm and around a residual."""

    def __init__(self, config: HeadConfig):
        super().__init__()
        dim, wide = config.hidden_size, config.intermediate_size
        self.input_layernorm = nn.RMSNorm(dim, config.rms_norm_eps)
        self.self_attn = QueryAttention(config)
        self.post_attention_layernorm = nn.RMSNorm(dim, config.rms_norm_eps)
        self.gate_proj = nn.Linear(dim, wide, bias=False)
        self.up_proj = nn.Linear(dim, wide, bias=False)
        self.down_proj = nn.Linear(wide, dim, bias=False)

    def __call__(
        self, x: mx.array, keys: mx.array, values: mx.array, *, offset: int | mx.array, mask: mx.array | None
    ) -> mx.array:
        x = x + self.self_attn(self.input_layernorm(x), keys, values, offset=offset, mask=mask)
        h = self.post_attention_layernorm(x)
        return x + self.down_proj(powers.gated(self.gate_proj(h), self.up_proj(h)))


class MTPHead(nn.Module):
    """One draft step: (embedding of the last token, state before it) → (y for the logits, the next state).

    No K/V projections, no cache, no prefill: all that is kept between steps is one state of ``hidden_size``.
    """

    def __init__(self, config: HeadConfig, draft_vocab: mx.array):
        """``draft_vocab``: (n,) int32, the backbone ids that a draft may hold besides the prompt's own."""
        super().__init__()
        dim, eps = config.hidden_size, config.rms_norm_eps
        self.config = config
        self.draft_vocab = draft_vocab
        self.embed_norm = nn.RMSNorm(dim, eps)
        self.state_norm = nn.RMSNorm(dim, eps)
        self.pre = nn.Linear(2 * dim, dim, bias=False)
        self.layers = [HeadLayer(config) for _ in config.kv_layers]
        self.norm = nn.RMSNorm(dim, eps)
        self.post = nn.Linear(dim, dim, bias=False)
        self.freeze(keys=["draft_vocab"], recurse=False)

    def __call__(
        self,
        embedding: mx.array,
        state: mx.array,
        kv: Sequence[tuple[mx.array, mx.array]],
        *,
        offset: int | mx.array,
        mask: mx.array | None = None,
    ) -> tuple[mx.array, mx.array]:
        """One draft step for each row.

        Args:
            embedding: (batch, rows, dim) of the last token.
            state: (batch, rows, dim) the backbone's post-norm state at the token before it, or the last step's.
            kv: for each head layer, (batch, kv_heads, n, head_dim) keys and values of its backbone layer.
            offset: the position of the first row's token; rows follow one another.
            mask: (rows, n) bool, True where a row may read a key; None: all of them.

        Returns:
            y (batch, rows, dim), whose product with output rows is the logits, and the next state (batch, rows, dim).
        """
        x = self.enter(embedding, state)
        for layer, (keys, values) in zip(self.layers, kv, strict=True):
            x = layer(x, keys, values, offset=offset, mask=mask)
        y = self.norm(x)
        return y, self.post(y)

    def enter(self, embedding: mx.array, state: mx.array) -> mx.array:
        """What the first layer gets: (batch, rows, dim) each → (batch, rows, dim)."""
        return self.pre(mx.concatenate([self.embed_norm(embedding), self.state_norm(state)], axis=-1))

    def attention(
        self, embedding: mx.array, state: mx.array, kv: Sequence[tuple[mx.array, mx.array]], *, offset: int
    ) -> list[mx.array]:
        """Where a draft step looks: for each layer (batch, rows, n) shares, the mean over its attention heads."""
        x, shares = self.enter(embedding, state), []
        for layer, (keys, values) in zip(self.layers, kv, strict=True):
            shares.append(layer.self_attn.shares(layer.input_layernorm(x), keys, offset=offset).mean(axis=1))
            x = layer(x, keys, values, offset=offset, mask=None)
        return shares

    def copy_from(self, backbone: Backbone, *, layers: bool = True) -> None:
        """Start as the backbone: each layer from the one whose K/V it reads, the norms and projections neutral.

        Without ``layers``, those stay as they are.
        """
        dim = self.config.hidden_size
        identity = mx.eye(dim)
        final = mx.array(backbone.model.model.norm.weight, mx.float32)
        # The final norm undone: the layers get a residual stream as large as where they stood. (SmolLM2-135M: RMS 9
        # before layer 20, 31 before layer 29. Starting at 20 gave 0.72 accepted tokens where 1 gave 0.62.)
        scale = mx.sqrt((final * final).mean()) * residual_rms(backbone, self.config.kv_layers)
        self.state_norm.weight = mx.where(mx.abs(final) < 0.1, 0, scale / final)
        self.pre.weight = mx.concatenate([EMBED_SHARE * identity, identity], axis=1)
        self.post.weight = identity
        self.norm.weight = final
        for layer, source in zip(self.layers, self.config.kv_layers, strict=True) if layers else ():
            original = backbone.model.layers[source]
            pairs = [
                (layer.self_attn.q_proj, original.self_attn.q_proj),
                (layer.self_attn.o_proj, original.self_attn.o_proj),
                (layer.gate_proj, original.mlp.gate_proj),
                (layer.up_proj, original.mlp.up_proj),
                (layer.down_proj, original.mlp.down_proj),
                (layer.input_layernorm, original.input_layernorm),
                (layer.post_attention_layernorm, original.post_attention_layernorm),
            ]
            for mine, theirs in pairs:
                mine.weight = mx.array(dense_weight(theirs), mx.float32)


def residual_rms(backbone: Backbone, layers: Sequence[int]) -> float:
    """The RMS of the residual stream before some of the backbone's layers, averaged, on a task's example."""
    text = "\n".join(example for task in TASKS.values() for example in task.examples)
    x = backbone.embed(mx.array([backbone.tokenizer.encode(text)]))  # (1, n, dim)
    before = []
    for layer in backbone.model.layers:
        before.append(float(mx.sqrt((x[:, 8:] ** 2).mean())))  # the first tokens hold the attention sink
        x = layer(x, "causal")
    return sum(before[layer] for layer in layers) / len(layers)


def dense_weight(module: Any) -> mx.array:
    """A linear layer's or norm's weight, de-quantised if need be."""
    if isinstance(module, nn.QuantizedLinear):
        parts = (module.weight, module.scales, module.biases)
        return mx.dequantize(*parts, module.group_size, module.bits, module.mode)
    return module.weight


def save_head(head: MTPHead, folder: Path) -> None:
    """Write config.json, model.safetensors (float16) and SHA256SUMS; other files of the folder stay."""
    arrays: Any = tree_flatten(head.parameters())
    bound.save(folder, model_type=KIND, config=head.config, arrays=dict(arrays))


def load_head(folder: Path, backbone: Backbone) -> MTPHead:
    """Load a head for ``backbone``, in the backbone's own floating-point type.

    Raises:
        WeightsError: missing, damaged, or made for another backbone or vocabulary.
    """
    config, arrays = bound.read(folder, HeadConfig, model_type=KIND, what="MTP head", cure=RETRAIN)
    bound.check(folder, config, arrays, backbone, layers=config.kv_layers, cure=RETRAIN)
    with bound.readable(folder, what="MTP head", cure=RETRAIN):
        head = MTPHead(config, arrays["draft_vocab"])
        head.load_weights(list(arrays.items()))
        cpu.adapt(head)
    head.set_dtype(backbone.dtype)
    head.eval()
    mx.eval(head.parameters())
    return head
