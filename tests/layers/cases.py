"""Every layer with the arguments it is called with; a new layer is tested by being added to CASES.

Sizes are such that eight devices, two along each of data, fsdp and model, divide them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.config import REQUIRED, Config, ConfigOf, replace
from dovetail.layers import (
    Attention,
    ContiguousKVCache,
    Decoder,
    Dropout,
    Embedding,
    FeedForward,
    Linear,
    NoInputPositions,
    NoKVCache,
    NoPositions,
    Pattern,
    PreNorm,
    Residual,
    RMSNorm,
    Stack,
    TokenContext,
    TransformerBlock,
    UncachedKV,
)
from dovetail.layers.attention.latent import LatentAttention
from dovetail.layers.attention.mixing import DifferentialAttention, GatedAttention
from dovetail.layers.attention.paged_kv_cache import BLOCK_TABLE, PagedKVCache
from dovetail.layers.attention.scores import (
    LearnedSinks,
    PositionalScores,
    SigmoidAttention,
    SoftCappedScores,
)
from dovetail.layers.embedding import ScaledEmbedding
from dovetail.layers.feed_forward import ClampedFeedForward, PlainFeedForward, squared_relu
from dovetail.layers.linear.adapters import DoRA, LoRA
from dovetail.layers.linear.linear import LowRankLinear, NormedLinear
from dovetail.layers.linear.quantized import Fp8Matmul, Int8Matmul
from dovetail.layers.moe import (
    Capacity,
    GroupLimitedSelection,
    LoadBalanceLoss,
    LossFreeBias,
    MixtureOfExperts,
    RouterZLoss,
    SigmoidScores,
    TopKRouter,
)
from dovetail.layers.moe.capacity import ExpertChoice
from dovetail.layers.mup import InverseWidthScale, ScaledReadout
from dovetail.layers.norms import DynamicTanh, LayerNorm, NoNorm, OffsetRMSNorm
from dovetail.layers.positions.alibi import Alibi
from dovetail.layers.positions.learned import LearnedPositions
from dovetail.layers.positions.rope_scaling import YarnScaling
from dovetail.layers.positions.rotary import InterleavedRotaryEmbedding, RotaryEmbedding
from dovetail.layers.recurrent.gated_delta import GatedDelta
from dovetail.layers.recurrent.mamba2 import Mamba2
from dovetail.layers.recurrent.state_cache import RecurrentStateCache
from dovetail.layers.residual import OutputNorm, PostNorm, SandwichNorm
from dovetail.layers.scaled_residual import ScaledResidual
from dovetail.layers.stack.blocks import ParallelBlock
from dovetail.layers.stack.stack import SharedStack
from dovetail.module import Module, Normal, parameter, parameter_specs
from tests.kernels.attention.biases import BucketBias

BATCH, SEQUENCE, WIDTH, HEADS, KV_HEADS, HIDDEN, VOCAB = 4, 6, 16, 4, 2, 24, 32
HEAD_WIDTH = WIDTH // HEADS


@dataclass(frozen=True)
class Case:
    """A layer, and what it is given: arrays, or things made of arrays."""

    config: Config[Any]
    arguments: Callable[[], tuple[Any, ...]]


class Joined(Module):
    """A residual connection around a fixed sublayer, so that it can be called like a layer."""

    class Config(Module.Config["Joined"]):
        residual: ConfigOf[Residual] = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.residual = config.residual.clone(width=WIDTH).build()

    def __call__(self, x_BSE: jax.Array) -> jax.Array:
        return self.residual.after(x_BSE, jnp.tanh(self.residual.before(x_BSE)))


class BucketScores(PositionalScores):
    """A learned bias by distance (T5): a parameter that reaches the kernels in a score bias."""

    def __init__(self, config: PositionalScores.Config) -> None:
        super().__init__(config)
        shape = (SEQUENCE, config.num_heads)
        self.table = parameter(shape, (None, "heads"), Normal.Config(standard_deviation=0.02))

    def changes(self) -> dict[str, Any]:
        return {"score_bias": BucketBias(self.table)}


def vectors(seed: int = 0, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape or (BATCH, SEQUENCE, WIDTH))


def random_params(module: Module) -> dict[str, jax.Array]:
    """Values for every parameter, none of them zero or one by rule, without compiling anything."""
    random = np.random.default_rng(0)
    specs = parameter_specs(module)
    return {path: jnp.asarray(random.normal(0, 0.3, s.shape), s.dtype) for path, s in specs.items()}


def tokens() -> jax.Array:
    return jax.random.randint(jax.random.key(7), (BATCH, SEQUENCE), 0, VOCAB)


def token_context() -> TokenContext:
    """One segment a row, from position 0."""
    positions = jnp.broadcast_to(jnp.arange(SEQUENCE), (BATCH, SEQUENCE))
    return TokenContext(positions, jnp.ones_like(positions))


def queries_and_keys() -> tuple[Any, ...]:
    query = vectors(1, BATCH, SEQUENCE, HEADS, HEAD_WIDTH)
    key = vectors(2, BATCH, SEQUENCE, KV_HEADS, HEAD_WIDTH)
    return query, key, token_context()


def keys_and_values() -> tuple[Any, ...]:
    shape = (BATCH, SEQUENCE, KV_HEADS, HEAD_WIDTH)
    return vectors(1, *shape), vectors(2, *shape), token_context()


def paged_keys_and_values() -> tuple[Any, ...]:
    """With a block of its own for each row."""
    k, v, context = keys_and_values()
    return k, v, context.provide(BLOCK_TABLE, jnp.arange(BATCH)[::-1, None])


def attention() -> Attention.Config:
    return Attention.Config(
        num_heads=HEADS, num_kv_heads=KV_HEADS, positions=RotaryEmbedding.Config()
    )


def latent_attention() -> LatentAttention.Config:
    return LatentAttention.Config(
        num_heads=HEADS,
        latent_width=6,
        plain_width=4,
        rotated_width=2,
        value_width=3,
        query=LowRankLinear.Config(rank=10),
        positions=InterleavedRotaryEmbedding.Config(),
    )


def block() -> TransformerBlock.Config:
    return TransformerBlock.Config(
        attention=attention(), feed_forward=FeedForward.Config(hidden=HIDDEN)
    )


def mixture() -> MixtureOfExperts.Config:
    """Feed-forwards as experts, with the losses that training adds."""
    return MixtureOfExperts.Config(
        width=WIDTH,
        num_experts=4,
        top_k=2,
        expert=FeedForward.Config(hidden=HIDDEN),
        losses={"balance": LoadBalanceLoss.Config(), "z": RouterZLoss.Config()},
    )


def deep_mixture() -> MixtureOfExperts.Config:
    """Everything that can be swapped, swapped: DeepSeek-V3's router and a shared expert."""
    router = TopKRouter.Config(
        scores=SigmoidScores.Config(),
        selection=GroupLimitedSelection.Config(num_groups=2, top_groups=1),
        bias=LossFreeBias.Config(),
        scaling=2.5,
    )
    return mixture().set(router=router, shared=FeedForward.Config(hidden=HIDDEN))


def adapted(config: Config[Any]) -> Config[Any]:
    """Every linear map gets an adapter."""
    return replace(config, Linear, LoRA.Config(rank=2, alpha=3.0))


def directed(config: Config[Any]) -> Config[Any]:
    """Every linear map gets an adapter of length and direction."""
    return replace(config, Linear, DoRA.Config(rank=2, alpha=3.0))


def alternating() -> Pattern.Config:
    """Layers of two kinds in a row."""
    second = block().set(feed_forward_residual=PostNorm.Config(norm=LayerNorm.Config()))
    second.attention.positions = NoPositions.Config()
    return Pattern.Config(layers=(block(), second))


def mamba() -> Mamba2.Config:
    return Mamba2.Config(num_heads=HEADS, num_groups=2, state_width=4, chunk_length=4)


def gated_delta() -> GatedDelta.Config:
    return GatedDelta.Config(num_heads=HEADS, chunk_length=4)


def recurrent_hybrid() -> Stack.Config:
    """Layers that keep a state, and one that keeps keys and values."""
    mixers = (mamba(), gated_delta(), attention())
    layers = tuple(block().set(attention=mixer) for mixer in mixers)
    return Stack.Config(width=WIDTH, num_layers=2, layer=Pattern.Config(layers=layers))


def one() -> tuple[Any, ...]:
    return (vectors(),)


def mixing() -> tuple[Any, ...]:
    return vectors(), token_context()


CASES: dict[str, Case] = {
    "linear": Case(
        Linear.Config(in_features=WIDTH, out_features=HIDDEN, in_axis="embed", out_axis="mlp"), one
    ),
    "linear-bias": Case(
        Linear.Config(in_features=WIDTH, out_features=HIDDEN, out_axis="mlp", bias=True), one
    ),
    "linear-fp8": Case(
        Linear.Config(
            in_features=WIDTH,
            out_features=HIDDEN,
            in_axis="embed",
            out_axis="mlp",
            matmul=Fp8Matmul.Config(),
        ),
        one,
    ),
    "linear-int8": Case(
        Linear.Config(
            in_features=WIDTH,
            out_features=HIDDEN,
            in_axis="embed",
            out_axis="mlp",
            matmul=Int8Matmul.Config(),
        ),
        one,
    ),
    "normed-linear": Case(
        NormedLinear.Config(in_features=WIDTH, out_features=HIDDEN, out_axis="mlp", group=6), one
    ),
    "lora": Case(
        adapted(
            Linear.Config(in_features=WIDTH, out_features=HIDDEN, in_axis="embed", out_axis="mlp")
        ),
        one,
    ),
    "lora-inside-a-norm": Case(
        adapted(
            NormedLinear.Config(in_features=WIDTH, out_features=HIDDEN, out_axis="mlp", group=6)
        ),
        one,
    ),
    "dora": Case(
        directed(
            Linear.Config(
                in_features=WIDTH, out_features=HIDDEN, in_axis="embed", out_axis="mlp", bias=True
            )
        ),
        one,
    ),
    "low-rank-linear": Case(
        LowRankLinear.Config(in_features=WIDTH, out_features=HIDDEN, out_axis="mlp", rank=10), one
    ),
    "embedding": Case(Embedding.Config(vocab_size=VOCAB, width=WIDTH), lambda: (tokens(),)),
    "scaled-embedding": Case(
        ScaledEmbedding.Config(vocab_size=VOCAB, width=WIDTH), lambda: (tokens(),)
    ),
    "no-input-positions": Case(NoInputPositions.Config(width=WIDTH), mixing),
    "learned-positions": Case(LearnedPositions.Config(width=WIDTH, length=SEQUENCE), mixing),
    "rms-norm": Case(RMSNorm.Config(width=WIDTH), one),
    "offset-rms-norm": Case(OffsetRMSNorm.Config(width=WIDTH), one),
    "layer-norm": Case(LayerNorm.Config(width=WIDTH), one),
    "layer-norm-no-bias": Case(LayerNorm.Config(width=WIDTH, bias=False), one),
    "no-norm": Case(NoNorm.Config(width=WIDTH), one),
    "dynamic-tanh": Case(DynamicTanh.Config(width=WIDTH), one),
    "scaled-readout": Case(ScaledReadout.Config(width=WIDTH, base_width=4), one),
    "dropout": Case(Dropout.Config(rate=0.5), one),
    "pre-norm": Case(Joined.Config(residual=PreNorm.Config()), one),
    "post-norm": Case(Joined.Config(residual=PostNorm.Config()), one),
    "sandwich-norm": Case(Joined.Config(residual=SandwichNorm.Config()), one),
    "output-norm": Case(Joined.Config(residual=OutputNorm.Config()), one),
    "scaled-residual": Case(
        Joined.Config(residual=OutputNorm.Config(dropout=ScaledResidual.Config(factor=0.5))), one
    ),
    "interleaved-rotary": Case(
        InterleavedRotaryEmbedding.Config(head_width=HEAD_WIDTH), queries_and_keys
    ),
    "partial-rotary": Case(
        RotaryEmbedding.Config(
            head_width=HEAD_WIDTH,
            fraction=0.5,
            scaling=YarnScaling.Config(factor=4.0, original_length=4),
        ),
        queries_and_keys,
    ),
    "rotary": Case(RotaryEmbedding.Config(head_width=HEAD_WIDTH), queries_and_keys),
    "no-positions": Case(NoPositions.Config(head_width=HEAD_WIDTH), queries_and_keys),
    "no-kv-cache": Case(NoKVCache.Config(), keys_and_values),
    "uncached-kv": Case(UncachedKV.Config(), keys_and_values),
    "contiguous-kv-cache": Case(ContiguousKVCache.Config(length=SEQUENCE), keys_and_values),
    "paged-kv-cache": Case(
        PagedKVCache.Config(length=SEQUENCE, block_size=SEQUENCE), paged_keys_and_values
    ),
    "feed-forward": Case(FeedForward.Config(width=WIDTH, hidden=HIDDEN), one),
    "plain-feed-forward": Case(PlainFeedForward.Config(width=WIDTH, hidden=HIDDEN), one),
    "squared-relu": Case(
        PlainFeedForward.Config(width=WIDTH, hidden=HIDDEN, activation=squared_relu), one
    ),
    "clamped-feed-forward": Case(
        ClampedFeedForward.Config(width=WIDTH, hidden=HIDDEN, limit=1.0), one
    ),
    "mixture-of-experts": Case(mixture(), one),
    "mixture-of-experts-capacity": Case(mixture().set(dispatch=Capacity.Config(factor=1.0)), one),
    "mixture-of-choosing-experts": Case(mixture().set(dispatch=ExpertChoice.Config()), one),
    "mixture-of-experts-deepseek": Case(deep_mixture(), one),
    "mixture-of-adapted-experts": Case(adapted(mixture()), one),
    "mixture-of-adapted-experts-capacity": Case(
        adapted(mixture().set(dispatch=Capacity.Config(factor=1.0))), one
    ),
    "mixture-of-directed-experts": Case(directed(mixture()), one),
    "mixture-of-directed-experts-capacity": Case(
        directed(mixture().set(dispatch=Capacity.Config(factor=1.0))), one
    ),
    "attention": Case(attention().set(width=WIDTH), mixing),
    "attention-by-inverse-width": Case(
        attention().set(width=WIDTH, scale=InverseWidthScale.Config(base_width=2)), mixing
    ),
    "attention-with-adapters": Case(adapted(attention().set(width=WIDTH)), mixing),
    "attention-with-sinks-and-cap": Case(
        attention().set(
            width=WIDTH, scores=LearnedSinks.Config(base=SoftCappedScores.Config(cap=1.0))
        ),
        mixing,
    ),
    "attention-with-alibi": Case(
        attention().set(width=WIDTH, positions=NoPositions.Config(), scores=Alibi.Config()), mixing
    ),
    "attention-with-a-learned-bias": Case(
        attention().set(
            width=WIDTH, scores=BucketScores.Config(base=SoftCappedScores.Config(cap=1.0))
        ),
        mixing,
    ),
    "attention-by-sigmoids": Case(
        attention().set(
            width=WIDTH, scores=SigmoidAttention.Config(length=SEQUENCE, base=Alibi.Config())
        ),
        mixing,
    ),
    "attention-with-gated-heads": Case(
        attention().set(width=WIDTH, mixing=GatedAttention.Config()), mixing
    ),
    "differential-attention": Case(
        attention().set(width=WIDTH, mixing=DifferentialAttention.Config()), mixing
    ),
    "latent-attention-with-all": Case(
        latent_attention().set(
            width=WIDTH,
            rotated_width=4,
            scores=LearnedSinks.Config(),
            # Random exponents would bring a weight of 0.8 to 0.97, and there two maps nearly
            # cancel: what bfloat16 leaves of their difference is no measure of the layer.
            mixing=GatedAttention.Config(base=DifferentialAttention.Config(first_weight=0.5)),
        ),
        mixing,
    ),
    "latent-attention": Case(latent_attention().set(width=WIDTH), mixing),
    "mamba2": Case(mamba().set(width=WIDTH), mixing),
    "mamba2-with-state-cache": Case(
        mamba().set(width=WIDTH, cache=RecurrentStateCache.Config()), mixing
    ),
    "gated-delta": Case(gated_delta().set(width=WIDTH), mixing),
    "recurrent-hybrid": Case(recurrent_hybrid(), mixing),
    "stack": Case(Stack.Config(width=WIDTH, num_layers=3, layer=block()), mixing),
    "stack-of-mixtures": Case(
        Stack.Config(width=WIDTH, num_layers=2, layer=block().set(feed_forward=mixture())), mixing
    ),
    "parallel-block": Case(
        replace(block(), TransformerBlock, ParallelBlock.Config(width=WIDTH)), mixing
    ),
    "shared-stack": Case(
        SharedStack.Config(width=WIDTH, num_layers=3, layer=alternating()), mixing
    ),
    "shared-stack-of-mixtures": Case(
        SharedStack.Config(width=WIDTH, num_layers=2, layer=block().set(feed_forward=mixture())),
        mixing,
    ),
    "hybrid": Case(
        Pattern.Config(width=WIDTH, layers=(Stack.Config(num_layers=2, layer=alternating()),)),
        mixing,
    ),
    "decoder": Case(
        Decoder.Config(
            vocab_size=VOCAB, width=WIDTH, stack=Stack.Config(num_layers=2, layer=block())
        ),
        lambda: (tokens(), token_context()),
    ),
}
