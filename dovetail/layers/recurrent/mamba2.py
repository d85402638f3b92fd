"""Mamba-2: a state of fixed size that every head lets fade at its own pace.

B batch, S sequence, L tokens of a chunk (M: the same, as the one that is looked at), E embed,
H heads, P head width, G groups of heads, R heads of a group, N state width.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigError, ConfigOf, incidental
from dovetail.layers.checks import require_positive
from dovetail.layers.interfaces import Places, TokenMap
from dovetail.layers.linear.linear import Linear
from dovetail.layers.norms.rms import RMSNorm
from dovetail.layers.recurrent.chunks import Fading, over_chunks
from dovetail.layers.recurrent.convolution import ShortConvolution
from dovetail.layers.recurrent.decay import Decay
from dovetail.layers.recurrent.memory import Course, NoState, StateMemory
from dovetail.module import Constant, Module, parameter
from dovetail.parallel import constrain, tag


class Mamba2(Module):
    """The state-space layer of Mamba-2 (https://arxiv.org/abs/2405.21060).

    A token adds the product of its value and its key to a state [P, N], which fades by a factor
    that the token chooses, and reads it by its query. The paper calls value, key, query and step
    X, B, C and dt. Keys and queries are shared by the heads of a group.
    """

    class Config(Module.Config["Mamba2"]):
        """The width is set by the parent. All heads together are `expand` times as wide, about."""

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
        memory: ConfigOf[StateMemory] = NoState.Config()
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
        self.memory = config.memory.build()
        # What each head adds to what it reads of the state, of its own value.
        self.skip = parameter(
            (config.num_heads,), ("heads",), Constant.Config(value=1.0), decays=False
        )
        self._build_maps(config)

    def _build_maps(self, config: Config) -> None:
        inner, shared = config.num_heads * self.head_width, self.groups * config.state_width
        inward = {"in_features": config.width, "in_axis": "embed"}
        wide = {"out_features": inner, "out_axis": "heads"}
        self.value = config.value.build(**inward, **wide)
        self.gate = config.gate.build(**inward, **wide)
        self.key = config.key.build(**inward, out_features=shared)
        self.query = config.query.build(**inward, out_features=shared)
        convolution = config.convolution
        self.value_convolution = convolution.build(features=inner, axis="heads")
        self.key_convolution = convolution.build(features=shared)
        self.query_convolution = convolution.build(features=shared)
        self.norm = config.norm.build(width=inner, axis="heads")
        self.output = config.output.build(
            in_features=inner, in_axis="heads", out_features=config.width, out_axis="embed"
        )

    def __call__(self, x_BSE: jax.Array, places: Places) -> jax.Array:
        """Maps [B, S, E] to [B, S, E]."""
        value_BSX = self.value_convolution(tag(self.value(x_BSE), "attention_value"), places)
        value_BSHP = value_BSX.reshape(*x_BSE.shape[:2], -1, self.head_width)
        value_BSHP = constrain(value_BSHP, "batch", "sequence", "heads", None)
        key_BSX = self.key_convolution(tag(self.key(x_BSE), "attention_key"), places)
        query_BSX = self.query_convolution(tag(self.query(x_BSE), "attention_query"), places)
        mixed_BSHP = self._mix(value_BSHP, key_BSX, query_BSX, x_BSE, places)
        mixed_BSHP = mixed_BSHP + value_BSHP * self.skip[:, None]
        mixed_BSX = mixed_BSHP.reshape(value_BSX.shape).astype(x_BSE.dtype)
        mixed_BSX = tag(mixed_BSX, "attention_output")
        return self.output(self.norm(mixed_BSX * jax.nn.silu(self.gate(x_BSE))))

    def _mix(
        self,
        value_BSHP: jax.Array,
        key_BSX: jax.Array,
        query_BSX: jax.Array,
        x_BSE: jax.Array,
        places: Places,
    ) -> jax.Array:
        """Runs the state through the tokens, from where the call before left it."""
        course = Course.of(places)
        decays = self.decay(x_BSE, course.real_BS)
        batch, length, heads, _ = value_BSHP.shape
        grouped = (batch, length, self.groups, -1)
        inputs = _Inputs(
            added_BLHP=value_BSHP.astype(jnp.float32) * decays.step_BSH[..., None],
            key_BLGN=key_BSX.astype(jnp.float32).reshape(grouped),
            query_BLGN=query_BSX.astype(jnp.float32).reshape(grouped),
            log_decay_BLH=decays.log_decay_BSH,
            starts_BL=course.starts_BS,
        )
        shape = (batch, heads, self.head_width, self.config.state_width)
        state_BHPN = self.memory.read("state", jnp.zeros(shape, jnp.float32))
        state_BHPN, mixed_BSHP = over_chunks(_chunk, state_BHPN, inputs, self.chunk_length)
        self.memory.write("state", state_BHPN)
        return mixed_BSHP


class _Inputs(NamedTuple):
    """What the recurrence reads of each token."""

    added_BLHP: jax.Array
    key_BLGN: jax.Array
    query_BLGN: jax.Array
    log_decay_BLH: jax.Array
    starts_BL: jax.Array


def _chunk(state_BHPN: jax.Array, chunk: _Inputs) -> tuple[jax.Array, jax.Array]:
    """Computes all tokens of a chunk at once: as attention among them, and from the state before.

    The state after the chunk is what is left of the one before, and of each token.
    """
    fading = Fading(chunk.log_decay_BLH, chunk.starts_BL)
    heads = chunk.added_BLHP.shape[2] // chunk.key_BLGN.shape[2]
    scores_BGLM = jnp.einsum("blgn,bmgn->bglm", chunk.query_BLGN, chunk.key_BLGN)
    weights_BHLM = jnp.repeat(scores_BGLM, heads, axis=1) * fading.between()
    mixed_BLHP = jnp.einsum("bhlm,bmhp->blhp", weights_BHLM, chunk.added_BLHP)
    key_BLHN = jnp.repeat(chunk.key_BLGN, heads, axis=2)
    query_BLHN = jnp.repeat(chunk.query_BLGN, heads, axis=2)
    mixed_BLHP += jnp.einsum("blhn,bhpn,bhl->blhp", query_BLHN, state_BHPN, fading.from_before())
    left_BHPN = jnp.einsum("blhp,blhn,bhl->bhpn", chunk.added_BLHP, key_BLHN, fading.to_the_end())
    return state_BHPN * fading.across()[..., None, None] + left_BHPN, mixed_BLHP
