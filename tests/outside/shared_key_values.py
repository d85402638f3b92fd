"""Cross-layer attention: groups of layers share the keys and values of their first layer.

As in https://arxiv.org/abs/2405.12981. Only the first layer of a group has a KV cache.
"""

from __future__ import annotations

from typing import Any

import jax

from dovetail.config import REQUIRED, ConfigError, ConfigOf, replace, wraps
from dovetail.features import feature
from dovetail.layers import (
    Attention,
    BaseAttention,
    Decoder,
    KeyValues,
    KVCache,
    Layer,
    NoKVCache,
    TokenContext,
    arrange,
    layers_of,
)
from dovetail.module import Module, take_outputs


class SharingCache(Module):
    """Passes the keys and values of any KV cache on to later layers."""

    class Config(Module.Config["SharingCache"]):
        base: ConfigOf[KVCache] = wraps(NoKVCache.Config())

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.base = config.base.build()

    def __call__(self, k_BSKD: jax.Array, v_BSKW: jax.Array, context: TokenContext) -> KeyValues:
        kv = self.base(k_BSKD, v_BSKW, context)
        self.add_output("shared_kv", kv)
        return kv


class ReusingAttention(BaseAttention):
    """Attention with its own queries, and the keys and values of an earlier layer."""

    class Config(BaseAttention.Config):
        head_width: int | None = None

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.head_width = config.head_width or config.width // config.num_heads
        sizes = {"out_features": self.num_heads * self.head_width, "out_axis": "heads"}
        self.query = config.query.build(in_features=config.width, in_axis="embed", **sizes)
        self.positions = config.positions.build(head_width=self.head_width)
        self.build_output(config, self.head_width, self.head_width)

    def __call__(self, x_BSE: jax.Array, context: TokenContext) -> jax.Array:
        q_BSHD = self.query(x_BSE).reshape(*x_BSE.shape[:2], -1, self.head_width)
        q_BSHD, _ = self.positions(q_BSHD, q_BSHD, context)
        return self.attend(q_BSHD, context.get("shared_kv"), context, x_BSE)


class SharingGroup(Module):
    """Layers that share the keys and values of the first."""

    class Config(Module.Config["SharingGroup"]):
        width: int = REQUIRED
        layers: tuple[ConfigOf[Layer], ...] = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.layers = [layer.build(width=config.width) for layer in config.layers]

    def __call__(self, x_BSE: jax.Array, context: TokenContext) -> jax.Array:
        x_BSE, (kv,) = take_outputs("shared_kv", self.layers[0], x_BSE, context)
        for layer in self.layers[1:]:
            x_BSE = layer(x_BSE, context.provide("shared_kv", kv))
        return x_BSE


@feature(
    "shared-key-values",
    kind="attention",
    needs={"dovetail.layers:Attention": "there are no keys and values to share"},
)
def shared_key_values(config: Any, group: int = 2) -> Any:
    """Lets each group of layers share the keys and values of its first layer."""

    def grouped(decoder: Any) -> Any:
        layers = layers_of(decoder.stack)
        if len(layers) % group:
            raise ConfigError(f"group: {len(layers)} layers do not divide into groups of {group}.")
        groups = [layers[start : start + group] for start in range(0, len(layers), group)]
        return decoder.set(stack=arrange([_shared(each) for each in groups]))

    return replace(config, Decoder, grouped)


def _shared(layers: list[Any]) -> Any:
    first = replace(layers[0], NoKVCache, SharingCache.Config())
    rest = [replace(layer, Attention, ReusingAttention.Config()) for layer in layers[1:]]
    return SharingGroup.Config(layers=(first, *rest))
