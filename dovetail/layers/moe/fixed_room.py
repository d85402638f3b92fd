"""What dispatches share that give every expert room for the same number of tokens.

C tokens that an expert takes of a row R of the batch, beside the letters of this folder.
"""

from __future__ import annotations

import math
from typing import Any

import jax

from dovetail.config import Config as AnyConfig
from dovetail.config import ConfigError, Part
from dovetail.layers.moe.dispatch import Dispatch
from dovetail.layers.moe.dropless import Dropless
from dovetail.layers.moe.router import Routing
from dovetail.module import vmap
from dovetail.parallel import constrain


class FixedRoom(Part):
    """What dispatches have in common that give every expert room for as many tokens of a row.

    What a token gets then depends on other tokens of its row, so tokens that are generated one
    after the other are dispatched by `Dropless`.
    """

    class Config(Part.Config["FixedRoom"]):
        """The room of an expert, as a multiple of what it gets when the load is even."""

        factor: float = 1.0

        def for_decoding(self) -> AnyConfig[Dispatch]:
            """Returns what decodes: the other tokens of the row are not there to be compared."""
            return Dropless.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if not config.factor > 0:
            raise ConfigError(f"{config.locate('factor')}: expected above 0, got {config.factor}.")
        self.factor = config.factor

    def room(self, length: int, routing: Routing) -> int:
        """Returns how many tokens of a row an expert takes: each token once at the most."""
        choices, num_experts = routing.experts_BSK.shape[-1], routing.counts_X.shape[0]
        return min(length, math.ceil(self.factor * length * choices / num_experts))


def run_each(expert: Any, x_XRCE: jax.Array) -> jax.Array:
    """Runs experts side by side, each on its own tokens: C of each row R."""
    axes = ("expert", "batch", None, None)
    return constrain(vmap(expert, expert, constrain(x_XRCE, *axes)), *axes)
