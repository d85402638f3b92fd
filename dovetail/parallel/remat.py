"""Rematerialization policies: which activations are saved for the backward pass.

Other names of remat are activation checkpointing and activation recomputation. Layers name the
activations worth a decision with `tag()`. A policy, chosen by config, saves them, offloads them to
the host, or recomputes them.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Protocol

import jax
from jax.ad_checkpoint import checkpoint_name

from dovetail.config import Component, ConfigError, ConfigOf

Body = Callable[..., Any]


class Remat(Protocol):
    """Decides which activations of each layer a stack saves."""

    def wrap(self, body: Body, *, in_loop: bool) -> Body:
        """Wraps the pure function of one layer in `jax.checkpoint`.

        Args:
            body: the function.
            in_loop: whether it is the body of a loop (see `_checkpoint`).
        """
        ...


class SaveAll(Component):
    """Saves every activation: no remat. The fastest, if memory allows."""

    def wrap(self, body: Body, *, in_loop: bool) -> Body:
        """Returns the function unchanged."""
        return body


class SaveNothing(Component):
    """Saves only each layer's input, and recomputes the rest."""

    def wrap(self, body: Body, *, in_loop: bool) -> Body:
        """Uses `nothing_saveable`."""
        return _checkpoint(body, jax.checkpoint_policies.nothing_saveable, in_loop)


class SaveDots(Component):
    """Saves the outputs of matmuls with weights, and recomputes the rest."""

    def wrap(self, body: Body, *, in_loop: bool) -> Body:
        """Uses `dots_with_no_batch_dims_saveable`."""
        return _checkpoint(body, jax.checkpoint_policies.dots_with_no_batch_dims_saveable, in_loop)


class SaveNamed(Component):
    """Saves the tagged activations that it names; a name that no layer uses is ignored."""

    class Config(Component.Config["SaveNamed"]):
        """The tags, as layers give them with `tag()`."""

        names: tuple[str, ...] = ("attention_output",)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.names = config.names

    def wrap(self, body: Body, *, in_loop: bool) -> Body:
        """Uses `save_only_these_names`."""
        policy = jax.checkpoint_policies.save_only_these_names(*self.names)
        where = self.config.locate("names")
        body = _warn_if_unused(body, self.names, where, "everything is recomputed")
        return _checkpoint(body, policy, in_loop)


class OffloadNamed(Component):
    """Offloads the tagged activations that it names to host memory until the backward pass.

    It saves those in `save` on the device, and recomputes the rest. On a CPU both memories are the
    same, so offloaded activations are simply saved.
    """

    class Config(Component.Config["OffloadNamed"]):
        """The tags to offload, and those to save on the device."""

        names: tuple[str, ...] = ("layer_input", "attention_output")
        save: tuple[str, ...] = ()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.names, self.save = config.names, config.save
        if both := sorted({*self.names} & {*self.save}):
            raise ConfigError(
                f"{config.locate('save')}: {', '.join(both)} cannot be both saved on the device "
                "and offloaded. Name each tag in `save` or in `names`."
            )

    def wrap(self, body: Body, *, in_loop: bool) -> Body:
        """Uses `save_and_offload_only_these_names`."""
        policy = jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=self.save,
            names_which_can_be_offloaded=self.names,
            offload_src="device",
            offload_dst="pinned_host",
        )
        where = self.config.locate("names")
        body = _warn_if_unused(body, self.names, where, "nothing is offloaded")
        return _checkpoint(body, policy, in_loop)


_POLICIES: Mapping[str, Callable[[], Any]] = {
    "nothing": SaveNothing.Config,
    "dots": SaveDots.Config,
    "attention": lambda: SaveNamed.Config(names=("attention_output",)),
    "everything": SaveAll.Config,
}


def named_remat(save: tuple[str, ...]) -> ConfigOf[Remat]:
    """Returns the config of a policy by its short name, or of one that saves these tags."""
    policies = [name for name in save if name in _POLICIES]
    if not save or (policies and len(save) > 1):
        raise ConfigError(
            f"save: expected one of {', '.join(_POLICIES)}, or a list of tags, got {list(save)}."
        )
    return _POLICIES[policies[0]]() if policies else SaveNamed.Config(names=save)


def remat_name(policy: ConfigOf[Remat]) -> str:
    """Returns the value of `remat:save=` that names a policy; the inverse of `named_remat`."""
    for name, config in _POLICIES.items():
        if policy == config():
            return name
    if isinstance(policy, SaveNamed.Config) and policy.names:
        return f"({','.join(policy.names)})"
    raise ConfigError(
        f"remat: no value of `remat:save=` names {policy}. Set `remat` of the stack instead."
    )


# Expensive, or communication. Not "all but gathers": values computed from gathered parameters
# (cast to eight bits) would be saved unsharded; and float8_e4m3fn values that `jax.checkpoint`
# saves turn to NaN above 240, since they pass through `reduce_precision` (JAX 0.10.2).
_SAVED_PRIMITIVES = frozenset(
    {
        "all_to_all",
        "custom_vjp_call",  # kernels, and all-to-alls
        "dot_general",
        "pallas_call",
        "ragged_all_to_all",
        "ragged_dot_general",
        "sort",
    }
)


def remat_all_gathers(body: Body) -> Body:
    """Wraps a function that all-gathers parameters, so that the backward pass gathers them again.

    Otherwise the gathered parameters of all layers would be saved on every device. Matmuls, sorts
    and all-to-alls are saved. Inside a remat policy nothing is wrapped: it recomputes the gathers
    already.
    """
    if _inside_remat.get():
        return body
    return functools.partial(jax.checkpoint, policy=_is_saved)(body)


def _is_saved(primitive: Any, *_: Any, **__: Any) -> bool:
    return primitive.name in _SAVED_PRIMITIVES


_inside_remat: ContextVar[bool] = ContextVar("dovetail_inside_remat", default=False)
_tags: ContextVar[set[str] | None] = ContextVar("dovetail_tags", default=None)


def tag(array: jax.Array, name: str) -> jax.Array:
    """Names an activation for remat policies: `jax.ad_checkpoint.checkpoint_name`, recorded."""
    record_tag(name)
    return checkpoint_name(array, name)


def record_tag(name: str) -> None:
    """Records a tag that a kernel gives to a value itself."""
    seen = _tags.get()
    if seen is not None:
        seen.add(name)


def _warn_if_unused(body: Body, names: tuple[str, ...], where: str, effect: str) -> Body:
    """Warns if no layer uses any of the names. Some may be unused: a policy serves many models."""

    def call(*args: Any) -> Any:
        outer, seen = _tags.get(), set[str]()
        token = _tags.set(seen)
        try:
            result = body(*args)
        finally:
            _tags.reset(token)
        if outer is not None:  # a stack of stacks: the outer policy sees the same layers
            outer |= seen
        if seen.isdisjoint(names):
            warnings.warn(
                f"{where}: no layer tags any of {', '.join(names)}, so {effect}. "
                f"Tags here: {', '.join(sorted(seen)) or 'none'}.",
                stacklevel=2,
            )
        return result

    return call


def _checkpoint(body: Body, policy: Any, in_loop: bool) -> Body:
    def call(*args: Any) -> Any:
        token = _inside_remat.set(True)
        try:
            return body(*args)
        finally:
            _inside_remat.reset(token)

    # In a loop, forward and backward are separate loops, so XLA cannot merge the recomputation with
    # the original (CSE). In straight-line code it would, and save no memory, so CSE is prevented.
    return functools.partial(jax.checkpoint, policy=policy, prevent_cse=not in_loop)(call)
