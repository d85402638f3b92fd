"""Gated heads: each token decides how much of what its heads have found goes on."""

from __future__ import annotations

import jax

from dovetail.config import ConfigOf
from dovetail.layers.attention.memory import Remembered
from dovetail.layers.attention.mixing import ChangedMixing, Look
from dovetail.layers.interfaces import TokenMap
from dovetail.layers.linear.linear import Linear
from dovetail.parallel import constrain


class GatedHeads(ChangedMixing):
    """A sigmoid gate on each feature of each head (https://arxiv.org/abs/2505.06708).

    The gate is computed from what attention read, and stands before the last projection.
    """

    class Config(ChangedMixing.Config):
        """The map that the gate is the sigmoid of."""

        gate: ConfigOf[TokenMap] = Linear.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        inward = {"in_features": config.width, "in_axis": "embed"}
        outward = {"out_features": config.num_heads * config.value_width, "out_axis": "heads"}
        self.gate = config.gate.build(**inward, **outward)

    def __call__(
        self, look: Look, query_BSHD: jax.Array, seen: Remembered, x_BSE: jax.Array
    ) -> jax.Array:
        """Returns what the base has found, times the gate."""
        mixed_BSHW = self.base(look, query_BSHD, seen, x_BSE)
        gate_BSHW = jax.nn.sigmoid(self.gate(x_BSE)).reshape(mixed_BSHW.shape)
        return mixed_BSHW * constrain(gate_BSHW, "batch", "sequence", "heads", None)
