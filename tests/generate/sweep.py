"""Caches, layers and models for which "step by step = all at once" must hold."""

from typing import Any

from dovetail.config import Config, config_for, replace
from dovetail.kernels.attention import SlidingWindow
from dovetail.layers import (
    Attention,
    ContiguousKVCache,
    Linear,
    NoPositions,
    Pattern,
    PreNorm,
    Stack,
    TransformerBlock,
)
from dovetail.layers import FeedForward as GatedFeedForward
from dovetail.layers.attention.latent import LatentAttention
from dovetail.layers.attention.mixing import DifferentialAttention, GatedAttention
from dovetail.layers.linear.adapters import LoRA
from dovetail.layers.moe import (
    Capacity,
    GroupLimitedSelection,
    LossFreeBias,
    MixtureOfExperts,
    SigmoidScores,
    TopKRouter,
)
from dovetail.layers.positions.rotary import RotaryEmbedding
from dovetail.layers.recurrent.gated_delta import GatedDelta
from dovetail.layers.recurrent.mamba2 import Mamba2
from dovetail.layers.residual import PostNorm, SandwichNorm
from dovetail.layers.stack.blocks import ParallelBlock
from dovetail.layers.stack.stack import SharedStack
from dovetail.models import CausalLM
from dovetail.models.llama import llama

WIDTH = 32
LENGTH = 48
VOCABULARY = 96

CACHES: dict[str, Config[Any]] = {
    "contiguous": ContiguousKVCache.Config(),
}


def _attention(**values: Any) -> Attention.Config:
    return Attention.Config(positions=RotaryEmbedding.Config()).set(**values)


# Anything that maps [B, S, E] to [B, S, E] and mixes tokens along the sequence.
MIXERS: dict[str, Config[Any]] = {
    "attention": _attention(num_heads=4),
    "grouped": _attention(num_heads=4, num_kv_heads=2),
    "one key-value head": _attention(num_heads=4, num_kv_heads=1, scale=0.5),
    "explicit head width": _attention(num_heads=3, head_width=6),
    "sliding window": _attention(num_heads=4, mask=config_for(SlidingWindow, window=3)),
    "gated": _attention(num_heads=4, mixing=GatedAttention.Config()),
    "differential": _attention(num_heads=4, num_kv_heads=2, mixing=DifferentialAttention.Config()),
    "latent": LatentAttention.Config(
        num_heads=4,
        latent_width=12,
        plain_width=4,
        rotated_width=4,
        value_width=6,
        positions=RotaryEmbedding.Config(),
        mixing=GatedAttention.Config(base=DifferentialAttention.Config()),
    ),
    "no positions": _attention(num_heads=4, positions=NoPositions.Config()),
    "mamba2": Mamba2.Config(num_heads=4, num_groups=2, state_width=8, chunk_length=4),
    "gated delta": GatedDelta.Config(num_heads=4, chunk_length=4),
}


def _block(mixer: Config[Any], residual: Config[Any]) -> TransformerBlock.Config:
    return TransformerBlock.Config(
        attention=mixer,
        attention_residual=residual,
        feed_forward=GatedFeedForward.Config(hidden=40),
        feed_forward_residual=residual,
    )


def with_experts(config: Any, **values: Any) -> Any:
    """Every feed-forward becomes a mixture of experts."""
    experts = MixtureOfExperts.Config(num_experts=4, top_k=2, **values)
    return replace(config, GatedFeedForward, experts)


_GROUPED = _block(MIXERS["grouped"], PreNorm.Config())

LAYERS: dict[str, Config[Any]] = {
    **MIXERS,
    "pre-norm block": _GROUPED,
    "post-norm block": _block(MIXERS["grouped"], PostNorm.Config()),
    "sandwich-norm block": _block(MIXERS["grouped"], SandwichNorm.Config()),
    "parallel block": replace(_GROUPED, TransformerBlock, ParallelBlock.Config()),
    "adapted block": replace(_GROUPED, Linear, LoRA.Config(rank=3)),
    "mixture block": with_experts(_GROUPED),
    "adapted mixture block": replace(with_experts(_GROUPED), Linear, LoRA.Config(rank=3)),
    # A capacity so large that no token is dropped: then both forms must agree.
    "mixture block with capacity": with_experts(_GROUPED, dispatch=Capacity.Config(factor=2.0)),
    "stack": Stack.Config(num_layers=3, layer=_GROUPED),
    "shared stack": SharedStack.Config(num_layers=3, layer=_GROUPED),
    "shared stack in a stack": Stack.Config(
        num_layers=2, layer=SharedStack.Config(num_layers=2, layer=_GROUPED)
    ),
    "unrolled stack": Stack.Config(num_layers=3, layer=_GROUPED, unroll=3),
    "stack of a pattern": Stack.Config(
        num_layers=2,
        layer=Pattern.Config(layers=(_GROUPED, _block(MIXERS["no positions"], PreNorm.Config()))),
    ),
}

_RECURRENT = Pattern.Config(
    layers=tuple(
        _block(MIXERS[name], PreNorm.Config()) for name in ("mamba2", "gated delta", "grouped")
    )
)
LAYERS["stack of a recurrent pattern"] = Stack.Config(num_layers=2, layer=_RECURRENT)
LAYERS["shared stack of a recurrent pattern"] = SharedStack.Config(num_layers=2, layer=_RECURRENT)

_BIASED = TopKRouter.Config(
    scores=SigmoidScores.Config(),
    selection=GroupLimitedSelection.Config(num_groups=2, top_groups=1),
    bias=LossFreeBias.Config(),
)

_SIZES = {"vocab_size": VOCABULARY, "width": WIDTH, "num_layers": 2, "num_heads": 4, "hidden": 40}

MODELS: dict[str, CausalLM.Config] = {
    "llama": llama(**_SIZES),
    "grouped, tied": llama(**_SIZES, num_kv_heads=2, tied=True),
    "mixture of experts": with_experts(llama(**_SIZES)),
    "mixture, biased": with_experts(llama(**_SIZES, num_kv_heads=2), router=_BIASED),
    "shared layers": replace(llama(**_SIZES), Stack, SharedStack.Config()),
    "hybrid": replace(llama(**_SIZES), Stack, LAYERS["stack of a pattern"]),
    "recurrent hybrid": replace(llama(**_SIZES), Stack, LAYERS["stack of a recurrent pattern"]),
    "recurrent": replace(llama(**_SIZES), Attention, lambda _: MIXERS["mamba2"]),
}
