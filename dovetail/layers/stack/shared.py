"""Shared layers: a stack whose layers all use the same parameters."""

from __future__ import annotations

from typing import Any

from dovetail.layers.stack.stack import Stack


class SharedStack(Stack):
    """Applies one layer `num_layers` times (ALBERT, https://arxiv.org/abs/1909.11942).

    Parameters and variables are those of one layer; what each turn remembers is its own.
    """

    class Config(Stack.Config):
        """As a stack's."""

    def _declared(self, layer: Any, count: int, axis: str) -> Any:
        self._times = count
        return layer
