"""Rematerialisation: which activations are kept for the backward pass, and which are computed again.

Layers tag the values worth a decision; a policy, chosen by config, decides.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import jax
from jax.ad_checkpoint import checkpoint_name

from dovetail.config import Part


class Remat(Protocol):
    """Decides what a stack keeps of each layer."""

    def around(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps the pure function of one layer."""
        ...


class KeepAll(Part):
    """Keeps every activation: the fastest, where memory allows."""

    def around(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """Leaves the function as it is."""
        return body


class KeepNothing(Part):
    """Keeps each layer's input alone, and computes the rest again."""

    def around(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """Recomputes everything."""
        return _checkpoint(body, jax.checkpoint_policies.nothing_saveable)


class KeepDots(Part):
    """Keeps the results of products with weights, and computes the cheap rest again."""

    def around(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """Recomputes all but products without batch dimensions."""
        return _checkpoint(body, jax.checkpoint_policies.dots_with_no_batch_dims_saveable)


class KeepTags(Part):
    """Keeps the tagged values that it names."""

    class Config(Part.Config["KeepTags"]):
        """The tags, as layers give them with `tag()`."""

        names: tuple[str, ...] = ("attention_output",)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.names = config.names

    def around(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """Recomputes all but the named values."""
        return _checkpoint(body, jax.checkpoint_policies.save_only_these_names(*self.names))


def tag(array: jax.Array, name: str) -> jax.Array:
    """Names an activation, so that a policy can keep it."""
    return checkpoint_name(array, name)


def _checkpoint(body: Callable[..., Any], policy: Any) -> Callable[..., Any]:
    # Inside a scan, XLA cannot merge the recomputation with the first one, so CSE needs no guard.
    return functools.partial(jax.checkpoint, policy=policy, prevent_cse=False)(body)
