"""Mixing: the attention computation between the QKV projections and the output projection.

A variant that attends more than once, or that changes the heads' outputs, is a wrapper around
another `Mixing`. So variants compose, and attention knows none of them by name.

B batch, S queries, H heads, D head dim, W value head dim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigError, ConfigOf, wraps
from dovetail.layers.attention.kv_cache import KeyValues
from dovetail.layers.interfaces import TokenMap
from dovetail.layers.linear.linear import Linear
from dovetail.layers.norms import RMSNorm
from dovetail.module import Initializer, Module, Normal, parameter
from dovetail.parallel import constrain

Attend = Callable[[jax.Array, KeyValues], jax.Array]
"""Attends with the queries [B, S, H, D]; returns the outputs [B, S, H, W]."""


class Mixing(Module):
    """Plain attention; the innermost of the wrappers below."""

    class Config(Module.Config["Mixing"]):
        """All set by the parent: the model width, and the head dims of keys and values."""

        width: int = REQUIRED
        num_heads: int = REQUIRED
        key_width: int = REQUIRED
        value_width: int = REQUIRED

    def __call__(
        self, attend: Attend, q_BSHD: jax.Array, kv: KeyValues, x_BSE: jax.Array
    ) -> jax.Array:
        """Returns each head's output [B, S, H, W]; `x_BSE` is the input of the attention layer."""
        return attend(q_BSHD, kv)


class MixingWrapper(Mixing):
    """Changes the queries, keys or outputs of the mixing that it wraps."""

    class Config(Mixing.Config):
        base: ConfigOf[Mixing] = wraps(Mixing.Config())

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        names = ("width", "num_heads", "key_width", "value_width")
        self.base = config.base.build(**{name: getattr(config, name) for name in names})


class DifferentialAttention(MixingWrapper):
    """Differential attention: the difference of two attention maps (https://arxiv.org/abs/2410.05258).

    Each head attends twice: with its even features for the first map, and its odd ones for the
    second. So the projections keep their shapes. (The paper halves the number of heads and doubles
    the value head dim; sizes are the same.) Even and odd, not halves, because rotary embedding
    pairs feature i with i + D/2: where D/2 is even, as is usual, pairs stay in one map.
    """

    class Config(MixingWrapper.Config):
        """`first_weight` is the paper's lambda_init, the initial weight of the second map.

        In the paper it grows with depth, from 0.2 to 0.8. The layers of a stack share one config
        and do not know their index, so here it is the same in all.
        """

        first_weight: float = 0.8
        norm: ConfigOf[TokenMap] = RMSNorm.Config(epsilon=1e-5)
        weight_init: ConfigOf[Initializer] = Normal.Config(standard_deviation=0.1)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.key_width % 2:
            raise ConfigError(
                f"{config.locate('key_width')}: each head makes two maps of half its width, so "
                f"the width must be even, got {config.key_width}. Set the attention's head_width."
            )
        self.first_weight = config.first_weight
        self.norm = config.norm.build(width=config.value_width, axis=None)
        # The paper's lambda_q1, lambda_k1, lambda_q2 and lambda_k2.
        shape = (2, 2, config.key_width // 2)
        self.exponents = parameter(shape, (None, None, None), config.weight_init, decays=False)

    def __call__(
        self, attend: Attend, q_BSHD: jax.Array, kv: KeyValues, x_BSE: jax.Array
    ) -> jax.Array:
        """Attends twice, subtracts the second output, and normalizes each head."""
        first, second = (
            self.base(attend, q_BSHD[..., i::2], replace(kv, k_BTKD=kv.k_BTKD[..., i::2]), x_BSE)
            for i in (0, 1)
        )
        # In float32: the difference of nearly equal numbers is small, and the norm amplifies it.
        noise = self._lambda() * second.astype(jnp.float32)
        normed_BSHW = self.norm(first.astype(jnp.float32) - noise)
        return ((1 - self.first_weight) * normed_BSHW).astype(first.dtype)

    def _lambda(self) -> jax.Array:
        """Returns the weight of the second map, about `first_weight` at initialization."""
        queries, keys = jnp.moveaxis(self.exponents.astype(jnp.float32), 1, 0)
        first, second = jnp.exp(jnp.sum(queries * keys, axis=-1))
        return first - second + self.first_weight


class GatedAttention(MixingWrapper):
    """Gated attention: a sigmoid gate on the heads' outputs (https://arxiv.org/abs/2505.06708).

    The gate is computed from the layer's input, and applied before the output projection.
    """

    class Config(MixingWrapper.Config):
        gate: ConfigOf[TokenMap] = Linear.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        in_sizes = {"in_features": config.width, "in_axis": "embed"}
        out_sizes = {"out_features": config.num_heads * config.value_width, "out_axis": "heads"}
        self.gate = config.gate.build(**in_sizes, **out_sizes)

    def __call__(
        self, attend: Attend, q_BSHD: jax.Array, kv: KeyValues, x_BSE: jax.Array
    ) -> jax.Array:
        """Returns the wrapped mixing's output times the gate."""
        output_BSHW = self.base(attend, q_BSHD, kv, x_BSE)
        gate_BSHW = jax.nn.sigmoid(self.gate(x_BSE)).reshape(output_BSHW.shape)
        return output_BSHW * constrain(gate_BSHW, "batch", "sequence", "heads", None)
