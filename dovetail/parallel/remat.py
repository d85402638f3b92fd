"""Rematerialisation: which activations the backward pass finds kept, and which it computes again.

Layers tag the values worth a decision with `tag()`; a policy, chosen by config, decides.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol

import jax
from jax.ad_checkpoint import checkpoint_name

from dovetail.config import ConfigError, Part

Body = Callable[..., Any]


class Remat(Protocol):
    """Decides what a stack keeps of each layer."""

    def around(self, body: Body, *, in_loop: bool) -> Body:
        """Wraps the pure function of one layer; `in_loop` says whether it is the body of a loop."""
        ...


class KeepAll(Part):
    """Keeps every activation: the fastest, where memory allows."""

    def around(self, body: Body, *, in_loop: bool) -> Body:
        """Leaves the function as it is."""
        return body


class KeepNothing(Part):
    """Keeps each layer's input alone, and computes the rest again."""

    def around(self, body: Body, *, in_loop: bool) -> Body:
        """Recomputes everything."""
        return _checkpoint(body, jax.checkpoint_policies.nothing_saveable, in_loop)


class KeepDots(Part):
    """Keeps the results of products with weights, and computes the cheap rest again."""

    def around(self, body: Body, *, in_loop: bool) -> Body:
        """Recomputes all but products without batch dimensions."""
        return _checkpoint(body, jax.checkpoint_policies.dots_with_no_batch_dims_saveable, in_loop)


class KeepTags(Part):
    """Keeps the tagged values that it names; a name that no layer uses is passed over."""

    class Config(Part.Config["KeepTags"]):
        """The tags, as layers give them with `tag()`."""

        names: tuple[str, ...] = ("attention_output",)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.names = config.names

    def around(self, body: Body, *, in_loop: bool) -> Body:
        """Recomputes all but the named values."""
        policy = jax.checkpoint_policies.save_only_these_names(*self.names)
        where = self.config.locate("names")
        body = _checked(body, self.names, where, "all is computed again")
        return _checkpoint(body, policy, in_loop)


class OffloadTags(Part):
    """Lets the tagged values that it names wait in the host's memory for the backward pass.

    It keeps others where they are, and computes the rest again. On a CPU there is but one memory,
    and what it names is kept.
    """

    class Config(Part.Config["OffloadTags"]):
        """The tags, as layers give them with `tag()`: those that move, and those that stay."""

        names: tuple[str, ...] = ("layer_input", "attention_output")
        keep: tuple[str, ...] = ()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.names, self.keep = config.names, config.keep
        if both := sorted({*self.names} & {*self.keep}):
            raise ConfigError(
                f"{config.locate('keep')}: {', '.join(both)} cannot both stay and move. Name each "
                "tag in `keep` or in `names`."
            )

    def around(self, body: Body, *, in_loop: bool) -> Body:
        """Recomputes all but the named values."""
        policy = jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=self.keep,
            names_which_can_be_offloaded=self.names,
            offload_src="device",
            offload_dst="pinned_host",
        )
        where = self.config.locate("names")
        return _checkpoint(_checked(body, self.names, where, "nothing moves"), policy, in_loop)


# What takes long, or goes from device to device. Not "all but gathers": what is made of gathered
# parameters (rounded to eight bits) would wait, whole; and what `jax.checkpoint` keeps in
# float8_e4m3fn turns to NaN above 240, since it passes through `reduce_precision` (JAX 0.10.2).
_DEAR = frozenset(
    {
        "all_to_all",
        "custom_vjp_call",  # kernels, and exchanges
        "dot_general",
        "pallas_call",
        "ragged_all_to_all",
        "ragged_dot_general",
        "sort",
    }
)


def gather_again(body: Body) -> Body:
    """Wraps what gathers parameters, so that the backward pass gathers them again.

    Otherwise those of all layers would wait for it, whole, on every device. Products, sorts and
    what devices exchanged are kept. Where a policy around it computes again what it does not keep,
    gathers are among that already.
    """
    if _computes_again.get():
        return body
    return functools.partial(jax.checkpoint, policy=_is_dear)(body)


def _is_dear(primitive: Any, *_: Any, **__: Any) -> bool:
    return primitive.name in _DEAR


_computes_again: ContextVar[bool] = ContextVar("dovetail_computes_again", default=False)
_tags: ContextVar[set[str] | None] = ContextVar("dovetail_tags", default=None)


def tag(array: jax.Array, name: str) -> jax.Array:
    """Names an activation, so that a policy can keep it."""
    note_tag(name)
    return checkpoint_name(array, name)


def note_tag(name: str) -> None:
    """Tells who looks for it that a kernel gives a value this tag by itself."""
    seen = _tags.get()
    if seen is not None:
        seen.add(name)


def _checked(body: Body, names: tuple[str, ...], where: str, so: str) -> Body:
    """Warns where none of the names occurs: some may, in a policy that serves many models."""

    def call(*args: Any) -> Any:
        around, seen = _tags.get(), set[str]()
        token = _tags.set(seen)
        try:
            result = body(*args)
        finally:
            _tags.reset(token)
        if around is not None:  # a stack of stacks: the outer policy speaks of the same layers
            around |= seen
        if seen.isdisjoint(names):
            warnings.warn(
                f"{where}: no layer tags any of {', '.join(names)}, so {so}. "
                f"Tags here: {', '.join(sorted(seen)) or 'none'}.",
                stacklevel=2,
            )
        return result

    return call


def _checkpoint(body: Body, policy: Any, in_loop: bool) -> Body:
    def call(*args: Any) -> Any:
        token = _computes_again.set(True)
        try:
            return body(*args)
        finally:
            _computes_again.reset(token)

    # Forward and backward loops are apart, so XLA cannot merge the second computation with the
    # first. In straight code it would, and nothing would be saved: there it must be held back.
    return functools.partial(jax.checkpoint, policy=policy, prevent_cse=not in_loop)(call)
