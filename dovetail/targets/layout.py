"""A layout: how every array of a step lies on a machine. No array is made and no device is needed.

State and batch are what the program is compiled with. Activations are those that layers constrain
or note; how XLA splits the others, and which live at the same time, only compiling can tell.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dovetail.targets.machine import Machine

if TYPE_CHECKING:
    from dovetail.parallel import Activation
    from dovetail.trainer import Program, Trainer

_FIELDS = {
    "params": "parameters",
    "optimizer": "optimizer",
    "ema": "averages",
    "variables": "variables",
}
STATE_GROUPS = ("parameters", "optimizer", "averages", "variables", "batch")


@dataclass(frozen=True)
class Laid:
    """One array, and how it is split.

    Attributes:
        group: `parameters`, `optimizer`, `averages`, `variables`, `batch` or `activations`.
        path: the name of a parameter, of what holds its state, or of the module.
        owner: the parameter that it is the optimizer's state of, if it is.
        axes: the logical name of each axis.
        split: for each axis, the mesh axes that split it.
        local_shape: what one device holds.
        copies: how many devices hold the same piece.
        memory: the memory that it lies in, as JAX calls it; None is the device's own.
    """

    group: str
    path: str
    dtype: str
    axes: tuple[str | None, ...]
    shape: tuple[int, ...]
    split: tuple[tuple[str, ...], ...]
    local_shape: tuple[int, ...]
    number_bytes: int
    copies: int
    devices: int
    owner: str = ""
    memory: str | None = None

    @property
    def bytes_per_device(self) -> int:
        """What it takes on each device."""
        return self.number_bytes * math.prod(self.local_shape)

    @property
    def is_replicated(self) -> bool:
        """Says whether every device holds all of it; a single number is no matter."""
        return self.devices > 1 and self.copies == self.devices and math.prod(self.shape) > 1


@dataclass(frozen=True)
class Layout:
    """All arrays of an experiment on a machine."""

    machine: Machine
    mesh: dict[str, int]
    arrays: tuple[Laid, ...]

    def group(self, name: str) -> list[Laid]:
        """Returns the arrays of one group."""
        return [laid for laid in self.arrays if laid.group == name]

    def totals(self) -> dict[str, int]:
        """Returns the bytes that each group takes on a device, for what is there all the time."""
        sums = dict.fromkeys(STATE_GROUPS, 0)
        for laid in self.arrays:
            if laid.group in sums and laid.memory is None:
                sums[laid.group] += laid.bytes_per_device
        return {name: total for name, total in sums.items() if total}

    def elsewhere(self) -> int:
        """Returns the bytes of the state that lie in the host's memory for each device."""
        return sum(laid.bytes_per_device for laid in self.arrays if laid.memory is not None)

    def replicated(self) -> list[Laid]:
        """Returns the parameters and their state that every device holds whole, largest first."""
        held = [laid for laid in self.arrays if laid.group in STATE_GROUPS and laid.memory is None]
        whole = [laid for laid in held if laid.is_replicated]
        return sorted(whole, key=lambda laid: -laid.bytes_per_device)


def lay_out(config: Trainer.Config, machine: Machine, *, with_activations: bool = True) -> Layout:
    """Returns how an experiment lies on a machine; what does not divide is a ConfigError.

    Activations are found by tracing a step, which takes seconds for a large model.
    """
    from dovetail.kernels import target_platform

    trainer = config.build()
    is_gpu = machine.chip.kind == "gpu"
    there = trainer.mesh.abstract(machine.devices, machine.slices, any_axis=is_gpu)
    program = trainer.program_on(there)
    lay = _Layer(program)
    state = lay.state()  # first, so that what does not divide is told of a parameter
    activations: list[Activation] = []
    if with_activations:
        with target_platform(machine.chip.kind):
            activations = program.activations()
    arrays = [
        *state,
        *(
            lay("batch", "/".join(["batch", *keys]), leaf.axes, leaf.shape, leaf.dtype)
            for keys, leaf in _leaves(program.batch_spec)
        ),
        *(
            lay("activations", each.path, each.axes, each.shape, each.dtype, each.apart)
            for each in dict.fromkeys(activations)
        ),
    ]
    mesh = {axis: size for axis, size in program.placement.mesh.shape.items() if size > 1}
    return Layout(machine, mesh, tuple(arrays))


class _Layer:
    """Lays arrays on the mesh of a program."""

    def __init__(self, program: Program) -> None:
        self.program, self.placement = program, program.placement

    def state(self) -> list[Laid]:
        """Lays out parameters, optimizer, averages and variables."""
        shapes, axes = self.program.state_shapes, self.program.state_axes
        laid = []
        for field, group in _FIELDS.items():
            pairs = zip(_leaves(getattr(axes, field)), _leaves(getattr(shapes, field)), strict=True)
            for (keys, names), (_, leaf) in pairs:
                found = self(group, "/".join(keys), names, leaf.shape, leaf.dtype.name)
                is_state = group == "optimizer" and keys and keys[-1] in shapes.params
                found = replace(found, memory=names.memory)
                laid.append(replace(found, owner=keys[-1]) if is_state else found)
        return laid

    def __call__(
        self,
        group: str,
        path: str,
        axes: Any,
        shape: Any,
        dtype: str,
        apart: Collection[str] = (),
    ) -> Laid:
        """Lays out an array; along mesh axes that are `apart`, its shape is one device's part."""
        mesh, rules = self.placement.mesh, self.placement.rules
        named = ", ".join(str(axis) for axis in axes)
        what = f"{path}: activation ({named})" if group == "activations" else path
        sharding = rules.sharding(axes, mesh, shape, what, apart)
        split = tuple(rules.mesh_axes(axes, mesh))
        # Along these every device has what is its own, whether a logical axis says so or not.
        used = {name for names in split for name in names} | set(apart)
        return Laid(
            group=group,
            path=path,
            dtype=dtype,
            axes=tuple(axes),
            shape=tuple(
                length * math.prod(mesh.shape[name] for name in names if name in apart)
                for length, names in zip(shape, split, strict=True)
            ),
            split=split,
            local_shape=tuple(sharding.shard_shape(tuple(shape))),
            number_bytes=_number_bytes(dtype),
            copies=mesh.size // math.prod(mesh.shape[name] for name in used),
            devices=mesh.size,
        )


def _leaves(tree: Any) -> Iterable[tuple[list[str], Any]]:
    """Yields leaves with the names that lead to them: `mu`, then the path of a parameter."""
    import jax

    for keys, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        names = [str(getattr(key, "key", getattr(key, "name", ""))) for key in keys]
        yield [name for name in names if name], leaf


def _number_bytes(dtype: str) -> int:
    import jax.numpy as jnp

    return int(jnp.dtype(dtype).itemsize)
