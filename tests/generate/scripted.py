"""A model that says what a test wants, and a tokenizer of bytes."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigOf
from dovetail.layers import KVCache, NoKVCache, TokenContext
from dovetail.module import Module

END = 256


class Scripted(Module):
    """Puts the token `script[p]` at position p, whatever came before."""

    class Config(Module.Config["Scripted"]):
        script: tuple[int, ...] = REQUIRED
        vocab_size: int = END + 1
        cache: ConfigOf[KVCache] = NoKVCache.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.script, self.vocab_size = config.script, config.vocab_size
        self.cache = config.cache.build()

    def logits(self, tokens_BS: jax.Array, context: TokenContext, last_B: jax.Array) -> jax.Array:
        nothing = jnp.zeros((*tokens_BS.shape, 1, 1))
        self.cache(nothing, nothing, context)
        position_B = jnp.take_along_axis(context.positions_BS, last_B[:, None], axis=1)[:, 0]
        token_B = jnp.take(jnp.asarray(self.script), position_B + 1, mode="clip")
        return 10.0 * jax.nn.one_hot(token_B, self.vocab_size)


def says(text: str) -> Scripted.Config:
    """Returns a model that continues the one-token prompt with this text, and then ends it."""
    return Scripted.Config(script=(0, *text.encode(), END))


class Bytes:
    """One id a byte."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: list[int]) -> str:
        return bytes(token for token in ids if token < END).decode(errors="replace")
