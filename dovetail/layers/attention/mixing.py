"""Mixing: what is done with the heads between the queries and the last projection.

A feature that looks more than once, or that changes what a look has found, is a part of its own,
which wraps another: so features add up, and attention knows none of them by name.
"""

from __future__ import annotations

from collections.abc import Callable

import jax

from dovetail.config import REQUIRED, ConfigOf, wraps
from dovetail.layers.attention.memory import Remembered
from dovetail.module import Module

Look = Callable[[jax.Array, Remembered], jax.Array]
"""Lets queries look at what is remembered: [B, S, H, D] to [B, S, H, W]."""


class Mixing(Module):
    """One look at what is remembered; what the others begin from."""

    class Config(Module.Config["Mixing"]):
        """All is set by the parent: the stream's width, and each head's for keys and values."""

        width: int = REQUIRED
        num_heads: int = REQUIRED
        key_width: int = REQUIRED
        value_width: int = REQUIRED

    def __call__(
        self, look: Look, query_BSHD: jax.Array, seen: Remembered, x_BSE: jax.Array
    ) -> jax.Array:
        """Returns what each head has found, [B, S, H, W]; `x_BSE` is what attention read."""
        return look(query_BSHD, seen)


class ChangedMixing(Mixing):
    """A mixing that changes one thing about another."""

    class Config(Mixing.Config):
        """What is changed."""

        base: ConfigOf[Mixing] = wraps(Mixing.Config())

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        names = ("width", "num_heads", "key_width", "value_width")
        self.base = config.base.build(**{name: getattr(config, name) for name in names})
