"""Gated DeltaNet: linear attention with the gated delta rule, computed by a chunked scan.

B batch, S sequence, L query tokens of a chunk, M key tokens of a chunk, E embed,
H heads, K key width, V value width, I = H K, J = H V.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigOf, incidental
from dovetail.layers.checks import require_positive
from dovetail.layers.context import TokenContext
from dovetail.layers.interfaces import TokenMap
from dovetail.layers.linear.linear import Linear
from dovetail.layers.norms import RMSNorm
from dovetail.layers.recurrent.chunked_scan import ChunkDecay, chunked_scan
from dovetail.layers.recurrent.convolution import ShortConvolution
from dovetail.layers.recurrent.decay import Decay
from dovetail.layers.recurrent.state_cache import NoStateCache, SequenceBoundaries, StateCache
from dovetail.module import Module
from dovetail.parallel import constrain, tag


class GatedDelta(Module):
    """The layer of Gated DeltaNet (https://arxiv.org/abs/2412.06464).

    The state [K, V] maps keys to values. Each token decays the state, replaces a fraction (the
    strength, beta in the paper) of the value stored under its key, and reads the state by its
    query. Queries and keys are L2-normalized. Within a chunk, a triangular system gives the values
    that its tokens write.
    """

    class Config(Module.Config["GatedDelta"]):
        """The width is set by the parent.

        By default all keys together are 3/4 of the width, and values are twice as wide as keys: 6
        width^2 parameters, as in the paper.
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
        cache: ConfigOf[StateCache] = NoStateCache.Config()
        chunk_length: int = incidental(64)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "width", "num_heads", "key_width", "value_width", "chunk_length")
        self.num_heads, self.chunk_length = config.num_heads, config.chunk_length
        self.key_width = config.key_width or max(1, 3 * config.width // (4 * self.num_heads))
        self.value_width = config.value_width or 2 * self.key_width
        self.decay = config.decay.build(width=config.width, num_heads=self.num_heads)
        self.norm = config.norm.build(width=self.value_width, axis=None)
        # This layer's own state; each convolution has a cache, too.
        self.layer_cache = config.cache.build()
        self._build_maps(config)

    def _build_maps(self, config: Config) -> None:
        keys, values = self.num_heads * self.key_width, self.num_heads * self.value_width
        in_sizes = {"in_features": config.width, "in_axis": "embed", "out_axis": "heads"}
        self.query = config.query.build(**in_sizes, out_features=keys)
        self.key = config.key.build(**in_sizes, out_features=keys)
        self.value = config.value.build(**in_sizes, out_features=values)
        self.gate = config.gate.build(**in_sizes, out_features=values)
        self.strength = config.strength.build(**in_sizes, out_features=self.num_heads)
        convolution = config.convolution.clone(axis="heads")
        self.query_convolution = convolution.build(features=keys)
        self.key_convolution = convolution.build(features=keys)
        self.value_convolution = convolution.build(features=values)
        self.output = config.output.build(
            in_features=values, in_axis="heads", out_features=config.width, out_axis="embed"
        )

    def __call__(self, x_BSE: jax.Array, context: TokenContext) -> jax.Array:
        """Maps [B, S, E] to [B, S, E]."""
        q_BSI = self.query_convolution(tag(self.query(x_BSE), "attention_query"), context)
        k_BSI = self.key_convolution(tag(self.key(x_BSE), "attention_key"), context)
        v_BSJ = self.value_convolution(tag(self.value(x_BSE), "attention_value"), context)
        boundaries = SequenceBoundaries.of(context)
        inputs = _GatedDeltaInputs(
            q_BLHK=_l2_normalize(self._heads(q_BSI)) * self.key_width**-0.5,
            k_BLHK=_l2_normalize(self._heads(k_BSI)),
            v_BLHV=self._heads(v_BSJ),
            strength_BLH=self._strength(x_BSE, boundaries.real_BS),
            log_decay_BLH=self.decay(x_BSE, boundaries.real_BS).log_decay_BSH,
            starts_BL=boundaries.starts_BS,
        )
        output_BSHV = tag(self._mix(inputs).astype(x_BSE.dtype), "attention_output")
        normed_BSJ = self.norm(output_BSHV).reshape(v_BSJ.shape)
        return self.output(normed_BSJ * jax.nn.silu(self.gate(x_BSE)))

    def _mix(self, inputs: _GatedDeltaInputs) -> jax.Array:
        """Runs the recurrence from the cached state."""
        shape = (len(inputs.k_BLHK), self.num_heads, self.key_width, self.value_width)
        state_BHKV = self.layer_cache.read("state", jnp.zeros(shape, jnp.float32))
        state_BHKV, output_BSHV = chunked_scan(_chunk, state_BHKV, inputs, self.chunk_length)
        self.layer_cache.write("state", state_BHKV)
        return output_BSHV

    def _strength(self, x_BSE: jax.Array, real_BS: jax.Array) -> jax.Array:
        """Returns the fraction of the old value that is replaced; 0 at padding."""
        logits_BSH = self.strength(x_BSE).astype(jnp.float32)
        return jax.nn.sigmoid(logits_BSH) * real_BS[..., None]

    def _heads(self, x: jax.Array) -> jax.Array:
        heads = x.astype(jnp.float32).reshape(*x.shape[:2], self.num_heads, -1)
        return constrain(heads, "batch", "sequence", "heads", None)


class _GatedDeltaInputs(NamedTuple):
    """The inputs of the recurrence, in float32."""

    q_BLHK: jax.Array
    k_BLHK: jax.Array
    v_BLHV: jax.Array
    strength_BLH: jax.Array
    log_decay_BLH: jax.Array
    starts_BL: jax.Array


def _chunk(state_BHKV: jax.Array, chunk: _GatedDeltaInputs) -> tuple[jax.Array, jax.Array]:
    """Computes a chunk in parallel.

    A token writes its value minus the value that its key finds: in the initial state, and in what
    earlier tokens of the chunk wrote. So the written values solve a triangular system.
    """
    decay = ChunkDecay(chunk.log_decay_BLH, chunk.starts_BL)
    pairwise_BHLM, initial_BHL = decay.pairwise(), decay.from_initial()
    k_BHLK, q_BHLK = chunk.k_BLHK.swapaxes(1, 2), chunk.q_BLHK.swapaxes(1, 2)
    strength_BHL1 = chunk.strength_BLH.swapaxes(1, 2)[..., None]
    found_BHLV = jnp.einsum("bhlk,bhkv,bhl->bhlv", k_BHLK, state_BHKV, initial_BHL)
    overlap_BHLM = strength_BHL1 * jnp.einsum("bhlk,bhmk->bhlm", k_BHLK, k_BHLK) * pairwise_BHLM
    wanted_BHLV = strength_BHL1 * (chunk.v_BLHV.swapaxes(1, 2) - found_BHLV)
    written_BHLV = _inverse(overlap_BHLM) @ wanted_BHLV
    weights_BHLM = jnp.einsum("bhlk,bhmk->bhlm", q_BHLK, k_BHLK) * pairwise_BHLM
    output_BHLV = weights_BHLM @ written_BHLV
    output_BHLV += jnp.einsum("bhlk,bhkv,bhl->bhlv", q_BHLK, state_BHKV, initial_BHL)
    added_BHKV = jnp.einsum("bhlk,bhlv,bhl->bhkv", k_BHLK, written_BHLV, decay.to_final())
    state_BHKV = state_BHKV * decay.total()[..., None, None] + added_BHKV
    return state_BHKV, output_BHLV.swapaxes(1, 2)


def _inverse(lower: jax.Array) -> jax.Array:
    """Inverts unit lower triangular matrices, given their strictly lower part.

    The inverse of a block is computed from the inverses of its two diagonal blocks. So it is a few
    batched matmuls; a triangular solve goes row by row. (A Neumann series is batched too, but
    overflows float32 where keys are similar.)
    """
    length = lower.shape[-1]
    padded = 1 << (length - 1).bit_length()
    lower = jnp.pad(lower, [(0, 0)] * (lower.ndim - 2) + [(0, padded - length)] * 2)
    inverses = jnp.ones((*lower.shape[:-2], padded, 1, 1), lower.dtype)
    size = 1
    while size < padded:
        pairs = (*lower.shape[:-2], padded // (2 * size), 2 * size)
        on_diagonal = jnp.einsum("...iaib->...iab", lower.reshape(*pairs, *pairs[-2:]))
        first, second = inverses[..., 0::2, :, :], inverses[..., 1::2, :, :]
        corner = -second @ on_diagonal[..., size:, :size] @ first
        top = jnp.concatenate([first, jnp.zeros_like(first)], axis=-1)
        inverses = jnp.concatenate([top, jnp.concatenate([corner, second], axis=-1)], axis=-2)
        size *= 2
    return inverses[..., 0, :length, :length]


def _l2_normalize(x: jax.Array) -> jax.Array:
    """L2-normalizes vectors."""
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + 1e-6)
