"""Mamba-2: a state-space layer with scalar decay per head, computed by a chunked scan (SSD).

B batch, S sequence, L query tokens of a chunk, M key tokens of a chunk, E embed,
H heads, P head width, G groups of heads, R heads of a group, N state width, I = H P, J = G N.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigError, ConfigOf, incidental
from dovetail.layers.checks import require_positive
from dovetail.layers.context import TokenContext
from dovetail.layers.interfaces import TokenMap
from dovetail.layers.linear.linear import Linear
from dovetail.layers.norms import RMSNorm
from dovetail.layers.recurrent.chunked_scan import ChunkDecay, chunked_scan
from dovetail.layers.recurrent.convolution import ShortConvolution
from dovetail.layers.recurrent.decay import Decay
from dovetail.layers.recurrent.state_cache import NoStateCache, SequenceBoundaries, StateCache
from dovetail.module import ConstantInitializer, Module, parameter
from dovetail.parallel import constrain, tag


class Mamba2(Module):
    """The state-space layer of Mamba-2 (https://arxiv.org/abs/2405.21060).

    Each token decays the state [P, N] by an input-dependent factor, adds the outer product of its
    value and key, and reads the state by its query. The paper calls value, key, query and step X,
    B, C and dt. The heads of a group share keys and queries.
    """

    class Config(Module.Config["Mamba2"]):
        """The width is set by the parent; the inner width is about `expand * width`."""

        width: int = REQUIRED
        num_heads: int = REQUIRED
        expand: int = 2
        head_width: int | None = None
        state_width: int = 128
        num_groups: int = 1
        value: ConfigOf[TokenMap] = Linear.Config()
        key: ConfigOf[TokenMap] = Linear.Config()
        query: ConfigOf[TokenMap] = Linear.Config()
        gate: ConfigOf[TokenMap] = Linear.Config()
        output: ConfigOf[TokenMap] = Linear.Config()
        convolution: ConfigOf[ShortConvolution] = ShortConvolution.Config(bias=True)
        decay: ConfigOf[Decay] = Decay.Config()
        norm: ConfigOf[TokenMap] = RMSNorm.Config()
        cache: ConfigOf[StateCache] = NoStateCache.Config()
        chunk_length: int = incidental(64)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "width", "num_heads", "expand", "head_width", "state_width")
        require_positive(config, "num_groups", "chunk_length")
        if config.num_heads % config.num_groups:
            raise ConfigError(
                f"{config.locate('num_groups')}: {config.num_heads} heads do not divide into "
                f"{config.num_groups} groups. Choose a divisor of {config.num_heads}."
            )
        self.head_width = config.head_width or max(
            1, config.expand * config.width // config.num_heads
        )
        self.chunk_length, self.groups = config.chunk_length, config.num_groups
        self.decay = config.decay.build(width=config.width, num_heads=config.num_heads)
        # This layer's own state; each convolution has a cache, too.
        self.layer_cache = config.cache.build()
        # The skip connection from value to output (D in the paper).
        self.skip = parameter(
            (config.num_heads,), ("heads",), ConstantInitializer.Config(value=1.0), decays=False
        )
        self._build_maps(config)

    def _build_maps(self, config: Config) -> None:
        inner, shared = config.num_heads * self.head_width, self.groups * config.state_width
        in_sizes = {"in_features": config.width, "in_axis": "embed"}
        wide = {"out_features": inner, "out_axis": "heads"}
        self.value = config.value.build(**in_sizes, **wide)
        self.gate = config.gate.build(**in_sizes, **wide)
        self.key = config.key.build(**in_sizes, out_features=shared)
        self.query = config.query.build(**in_sizes, out_features=shared)
        convolution = config.convolution
        self.value_convolution = convolution.build(features=inner, axis="heads")
        self.key_convolution = convolution.build(features=shared)
        self.query_convolution = convolution.build(features=shared)
        self.norm = config.norm.build(width=inner, axis="heads")
        self.output = config.output.build(
            in_features=inner, in_axis="heads", out_features=config.width, out_axis="embed"
        )

    def __call__(self, x_BSE: jax.Array, context: TokenContext) -> jax.Array:
        """Maps [B, S, E] to [B, S, E]."""
        v_BSI = self.value_convolution(tag(self.value(x_BSE), "attention_value"), context)
        v_BSHP = v_BSI.reshape(*x_BSE.shape[:2], -1, self.head_width)
        v_BSHP = constrain(v_BSHP, "batch", "sequence", "heads", None)
        k_BSJ = self.key_convolution(tag(self.key(x_BSE), "attention_key"), context)
        q_BSJ = self.query_convolution(tag(self.query(x_BSE), "attention_query"), context)
        output_BSHP = self._mix(v_BSHP, k_BSJ, q_BSJ, x_BSE, context)
        output_BSHP = output_BSHP + v_BSHP * self.skip[:, None]
        output_BSI = output_BSHP.reshape(v_BSI.shape).astype(x_BSE.dtype)
        output_BSI = tag(output_BSI, "attention_output")
        return self.output(self.norm(output_BSI * jax.nn.silu(self.gate(x_BSE))))

    def _mix(
        self,
        v_BSHP: jax.Array,
        k_BSJ: jax.Array,
        q_BSJ: jax.Array,
        x_BSE: jax.Array,
        context: TokenContext,
    ) -> jax.Array:
        """Runs the recurrence from the cached state."""
        boundaries = SequenceBoundaries.of(context)
        decays = self.decay(x_BSE, boundaries.real_BS)
        batch, length, heads, _ = v_BSHP.shape
        grouped = (batch, length, self.groups, -1)
        inputs = _Mamba2Inputs(
            added_BLHP=v_BSHP.astype(jnp.float32) * decays.step_BSH[..., None],
            k_BLGN=k_BSJ.astype(jnp.float32).reshape(grouped),
            q_BLGN=q_BSJ.astype(jnp.float32).reshape(grouped),
            log_decay_BLH=decays.log_decay_BSH,
            starts_BL=boundaries.starts_BS,
        )
        shape = (batch, heads, self.head_width, self.config.state_width)
        state_BHPN = self.layer_cache.read("state", jnp.zeros(shape, jnp.float32))
        state_BHPN, output_BSHP = chunked_scan(_chunk, state_BHPN, inputs, self.chunk_length)
        self.layer_cache.write("state", state_BHPN)
        return output_BSHP


class _Mamba2Inputs(NamedTuple):
    """The inputs of the recurrence."""

    added_BLHP: jax.Array
    k_BLGN: jax.Array
    q_BLGN: jax.Array
    log_decay_BLH: jax.Array
    starts_BL: jax.Array


def _chunk(state_BHPN: jax.Array, chunk: _Mamba2Inputs) -> tuple[jax.Array, jax.Array]:
    """Computes a chunk in parallel: attention-like within the chunk, plus the initial state."""
    decay = ChunkDecay(chunk.log_decay_BLH, chunk.starts_BL)
    heads = chunk.added_BLHP.shape[2] // chunk.k_BLGN.shape[2]
    scores_BGLM = jnp.einsum("blgn,bmgn->bglm", chunk.q_BLGN, chunk.k_BLGN)
    weights_BHLM = jnp.repeat(scores_BGLM, heads, axis=1) * decay.pairwise()
    output_BLHP = jnp.einsum("bhlm,bmhp->blhp", weights_BHLM, chunk.added_BLHP)
    k_BLHN = jnp.repeat(chunk.k_BLGN, heads, axis=2)
    q_BLHN = jnp.repeat(chunk.q_BLGN, heads, axis=2)
    output_BLHP += jnp.einsum("blhn,bhpn,bhl->blhp", q_BLHN, state_BHPN, decay.from_initial())
    added_BHPN = jnp.einsum("blhp,blhn,bhl->bhpn", chunk.added_BLHP, k_BLHN, decay.to_final())
    return state_BHPN * decay.total()[..., None, None] + added_BHPN, output_BLHP
