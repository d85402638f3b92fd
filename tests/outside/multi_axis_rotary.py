"""Multi-axis rotary embedding: time, height and width in one head, as M-RoPE of Qwen2-VL.

https://arxiv.org/abs/2409.12191. Each section of the frequencies turns with the position on one
axis. Text has the same position on all axes, so that it is ordinary RoPE.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.config import REQUIRED, ConfigError, modifier, replace
from dovetail.layers import BasePositions, TokenContext
from dovetail.layers.positions.rotary import RotaryEmbedding


class MultiAxisRotaryEmbedding(RotaryEmbedding):
    """RoPE whose frequencies are divided among the axes."""

    class Config(RotaryEmbedding.Config):
        """The number of frequencies of each axis, fastest first; a head of width D has D/2."""

        sections: tuple[int, ...] = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if sum(config.sections) != self.width // 2 or min(config.sections) < 1:
            raise ConfigError(
                f"{config.locate('sections')}: expected positive numbers that add up to "
                f"{self.width // 2}, half of the head width, got {config.sections}."
            )
        self.sections = config.sections

    def angles(self, frequencies: np.ndarray, context: TokenContext) -> jax.Array:
        axis_of_frequency = np.repeat(np.arange(len(self.sections)), self.sections)
        positions = context.positions_on_axes(len(self.sections))[..., axis_of_frequency]
        return positions.astype(jnp.float32) * frequencies


@modifier("multi-axis-rope")
def multi_axis_rope(config: Any, sections: tuple[int, ...]) -> Any:
    """RoPE on several axes, with so many frequencies each, such as (16,24,24)."""
    return replace(config, BasePositions, MultiAxisRotaryEmbedding.Config(sections=sections))
