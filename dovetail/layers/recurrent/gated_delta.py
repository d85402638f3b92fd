"""Gated DeltaNet: a state that forgets at its own pace, and replaces what it holds of a key.

B batch, S sequence, L tokens of a chunk (M: the same, as the one that is looked at), E embed,
H heads, K key width, V value width.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigOf, incidental
from dovetail.layers.checks import require_positive
from dovetail.layers.interfaces import Places, TokenMap
from dovetail.layers.linear.linear import Linear
from dovetail.layers.norms.rms import RMSNorm
from dovetail.layers.recurrent.chunks import Fading, over_chunks
from dovetail.layers.recurrent.convolution import ShortConvolution
from dovetail.layers.recurrent.decay import Decay
from dovetail.layers.recurrent.memory import Course, NoState, StateMemory
from dovetail.module import Module
from dovetail.parallel import constrain, tag


class GatedDelta(Module):
    """The layer of Gated DeltaNet (https://arxiv.org/abs/2412.06464).

    The state [K, V] maps keys to values. A token lets it fade, then writes its value in place of a
    share of what its key finds there, and reads the state by its query. Queries and keys have
    length 1. A chunk is computed at once by solving a triangular system for what its tokens write.
    """

    class Config(Module.Config["GatedDelta"]):
        """The width is set by the parent.

        Left out, all keys together are three quarters as wide as the stream, and values twice as
        wide as keys: 6 times the squared width in parameters, as in the paper.
        """

        width: int = REQUIRED
        num_heads: int = REQUIRED
        key_width: int | None = None
        value_width: int | None = None
        query: ConfigOf[TokenMap] = Linear.Config()
        key: ConfigOf[TokenMap] = Linear.Config()
        value: ConfigOf[TokenMap] = Linear.Config()
        gate: ConfigOf[TokenMap] = Linear.Config()
        strength: ConfigOf[TokenMap] = Linear.Config()
        output: ConfigOf[TokenMap] = Linear.Config()
        convolution: ConfigOf[ShortConvolution] = ShortConvolution.Config()
        decay: ConfigOf[Decay] = Decay.Config()
        norm: ConfigOf[TokenMap] = RMSNorm.Config()
        memory: ConfigOf[StateMemory] = NoState.Config()
        chunk_length: int = incidental(64)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "width", "num_heads", "key_width", "value_width", "chunk_length")
        self.num_heads, self.chunk_length = config.num_heads, config.chunk_length
        self.key_width = config.key_width or max(1, 3 * config.width // (4 * self.num_heads))
        self.value_width = config.value_width or 2 * self.key_width
        self.decay = config.decay.build(width=config.width, num_heads=self.num_heads)
        self.norm = config.norm.build(width=self.value_width, axis=None)
        self.memory = config.memory.build()
        self._build_maps(config)

    def _build_maps(self, config: Config) -> None:
        keys, values = self.num_heads * self.key_width, self.num_heads * self.value_width
        inward = {"in_features": config.width, "in_axis": "embed", "out_axis": "heads"}
        self.query = config.query.build(**inward, out_features=keys)
        self.key = config.key.build(**inward, out_features=keys)
        self.value = config.value.build(**inward, out_features=values)
        self.gate = config.gate.build(**inward, out_features=values)
        self.strength = config.strength.build(**inward, out_features=self.num_heads)
        convolution = config.convolution.clone(axis="heads")
        self.query_convolution = convolution.build(features=keys)
        self.key_convolution = convolution.build(features=keys)
        self.value_convolution = convolution.build(features=values)
        self.output = config.output.build(
            in_features=values, in_axis="heads", out_features=config.width, out_axis="embed"
        )

    def __call__(self, x_BSE: jax.Array, places: Places) -> jax.Array:
        """Maps [B, S, E] to [B, S, E]."""
        query_BSX = self.query_convolution(tag(self.query(x_BSE), "attention_query"), places)
        key_BSX = self.key_convolution(tag(self.key(x_BSE), "attention_key"), places)
        value_BSX = self.value_convolution(tag(self.value(x_BSE), "attention_value"), places)
        course = Course.of(places)
        inputs = _Inputs(
            query_BLHK=_unit(self._heads(query_BSX)) * self.key_width**-0.5,
            key_BLHK=_unit(self._heads(key_BSX)),
            value_BLHV=self._heads(value_BSX),
            strength_BLH=self._strength(x_BSE, course.real_BS),
            log_decay_BLH=self.decay(x_BSE, course.real_BS).log_decay_BSH,
            starts_BL=course.starts_BS,
        )
        mixed_BSHV = tag(self._mix(inputs).astype(x_BSE.dtype), "attention_output")
        normed_BSX = self.norm(mixed_BSHV).reshape(value_BSX.shape)
        return self.output(normed_BSX * jax.nn.silu(self.gate(x_BSE)))

    def _mix(self, inputs: _Inputs) -> jax.Array:
        """Runs the state through the tokens, from where the call before left it."""
        shape = (len(inputs.key_BLHK), self.num_heads, self.key_width, self.value_width)
        state_BHKV = self.memory.read("state", jnp.zeros(shape, jnp.float32))
        state_BHKV, mixed_BSHV = over_chunks(_chunk, state_BHKV, inputs, self.chunk_length)
        self.memory.write("state", state_BHKV)
        return mixed_BSHV

    def _strength(self, x_BSE: jax.Array, real_BS: jax.Array) -> jax.Array:
        """Returns the share of the old value that is replaced; padding writes nothing."""
        asked_BSH = self.strength(x_BSE).astype(jnp.float32)
        return jax.nn.sigmoid(asked_BSH) * real_BS[..., None]

    def _heads(self, x_BSX: jax.Array) -> jax.Array:
        x_BSHD = x_BSX.astype(jnp.float32).reshape(*x_BSX.shape[:2], self.num_heads, -1)
        return constrain(x_BSHD, "batch", "sequence", "heads", None)


class _Inputs(NamedTuple):
    """What the recurrence reads of each token, in float32."""

    query_BLHK: jax.Array
    key_BLHK: jax.Array
    value_BLHV: jax.Array
    strength_BLH: jax.Array
    log_decay_BLH: jax.Array
    starts_BL: jax.Array


def _chunk(state_BHKV: jax.Array, chunk: _Inputs) -> tuple[jax.Array, jax.Array]:
    """Computes all tokens of a chunk at once.

    What a token writes is its value less what its key finds: in the state before the chunk, and in
    what the tokens before it wrote. So all of them together solve one triangular system.
    """
    fading = Fading(chunk.log_decay_BLH, chunk.starts_BL)
    between_BHLM, before_BHL = fading.between(), fading.from_before()
    key_BHLK, query_BHLK = chunk.key_BLHK.swapaxes(1, 2), chunk.query_BLHK.swapaxes(1, 2)
    strength_BHL1 = chunk.strength_BLH.swapaxes(1, 2)[..., None]
    found_BHLV = jnp.einsum("bhlk,bhkv,bhl->bhlv", key_BHLK, state_BHKV, before_BHL)
    overlap_BHLM = strength_BHL1 * jnp.einsum("bhlk,bhmk->bhlm", key_BHLK, key_BHLK) * between_BHLM
    wanted_BHLV = strength_BHL1 * (chunk.value_BLHV.swapaxes(1, 2) - found_BHLV)
    written_BHLV = _inverse(overlap_BHLM) @ wanted_BHLV
    weights_BHLM = jnp.einsum("bhlk,bhmk->bhlm", query_BHLK, key_BHLK) * between_BHLM
    mixed_BHLV = weights_BHLM @ written_BHLV
    mixed_BHLV += jnp.einsum("bhlk,bhkv,bhl->bhlv", query_BHLK, state_BHKV, before_BHL)
    left_BHKV = jnp.einsum("bhlk,bhlv,bhl->bhkv", key_BHLK, written_BHLV, fading.to_the_end())
    state_BHKV = state_BHKV * fading.across()[..., None, None] + left_BHKV
    return state_BHKV, mixed_BHLV.swapaxes(1, 2)


def _inverse(lower: jax.Array) -> jax.Array:
    """Inverts matrices with ones on the diagonal and what `lower` has below it.

    By halves: from the inverses of two blocks on the diagonal follows that of the block of both. So
    it is a few products of many small matrices, which every machine does fast; a solver goes row by
    row. (A series of powers would too, but grows beyond float32 where keys are alike.)
    """
    length = lower.shape[-1]
    whole = 1 << (length - 1).bit_length()
    lower = jnp.pad(lower, [(0, 0)] * (lower.ndim - 2) + [(0, whole - length)] * 2)
    inverses = jnp.ones((*lower.shape[:-2], whole, 1, 1), lower.dtype)
    size = 1
    while size < whole:
        pairs = (*lower.shape[:-2], whole // (2 * size), 2 * size)
        on_diagonal = jnp.einsum("...iaib->...iab", lower.reshape(*pairs, *pairs[-2:]))
        first, second = inverses[..., 0::2, :, :], inverses[..., 1::2, :, :]
        corner = -second @ on_diagonal[..., size:, :size] @ first
        top = jnp.concatenate([first, jnp.zeros_like(first)], axis=-1)
        inverses = jnp.concatenate([top, jnp.concatenate([corner, second], axis=-1)], axis=-2)
        size *= 2
    return inverses[..., 0, :length, :length]


def _unit(x: jax.Array) -> jax.Array:
    """Returns vectors of length 1."""
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + 1e-6)
