"""The sharding of every array of a training step on a machine, without arrays or devices.

State and batch have the shardings that the program is compiled with. Activations are those that
layers constrain or record. Only compiling shows how XLA shards the others, and which are live at
the same time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from dovetail.targets.machine import Machine
from dovetail.utils import format_bytes, format_count, plural

if TYPE_CHECKING:
    from dovetail.parallel import Activation
    from dovetail.trainer import Program, Trainer

_FIELDS = {
    "params": "parameters",
    "optimizer": "optimizer",
    "ema": "averages",
    "variables": "variables",
}
_UNNAMED = "an experiment"
STATE_GROUPS = ("parameters", "optimizer", "averages", "variables", "batch")


@dataclass(frozen=True)
class ArraySharding:
    """One array and its sharding.

    Attributes:
        group: `parameters`, `optimizer`, `averages`, `variables`, `batch` or `activations`.
        path: the path of the parameter, of its optimizer state, or of the module.
        dtype: its dtype.
        axes: the logical name of each axis.
        shape: the global shape.
        mesh_axes: for each axis, the mesh axes that it is sharded over.
        local_shape: the shape of one shard.
        number_bytes: bytes of one element.
        copies: how many devices hold the same shard.
        devices: devices of the mesh.
        owner: for optimizer state, its parameter.
        memory: JAX's memory kind; None is device memory.
    """

    group: str
    path: str
    dtype: str
    axes: tuple[str | None, ...]
    shape: tuple[int, ...]
    mesh_axes: tuple[tuple[str, ...], ...]
    local_shape: tuple[int, ...]
    number_bytes: int
    copies: int
    devices: int
    owner: str = ""
    memory: str | None = None

    @property
    def bytes_per_device(self) -> int:
        """The bytes of one shard."""
        return self.number_bytes * math.prod(self.local_shape)

    @property
    def is_replicated(self) -> bool:
        """Whether every device holds all of it; scalars do not count."""
        return self.devices > 1 and self.copies == self.devices and math.prod(self.shape) > 1

    def facts(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        return {**asdict(self), "bytes_per_device": self.bytes_per_device}


@dataclass(frozen=True)
class ExperimentSharding:
    """The sharding of all arrays of an experiment on a machine.

    Attributes:
        machine: the machine.
        mesh: the mesh axes of more than one device.
        arrays: all arrays.
        experiment: its name, for the title of a report.
    """

    machine: Machine
    mesh: dict[str, int]
    arrays: tuple[ArraySharding, ...]
    experiment: str = _UNNAMED

    def group(self, name: str) -> list[ArraySharding]:
        """Returns the arrays of one group."""
        return [array for array in self.arrays if array.group == name]

    def states_like_parameters(self) -> dict[str, list[ArraySharding]]:
        """Returns the optimizer state that is sharded like its parameter, by parameter."""
        parameters = {array.path: array for array in self.group("parameters")}
        found: dict[str, list[ArraySharding]] = {}
        for state in self.group("optimizer"):
            owner = parameters.get(state.owner)
            if owner is not None and (owner.axes, owner.shape) == (state.axes, state.shape):
                found.setdefault(owner.path, []).append(state)
        return found

    def totals(self) -> dict[str, int]:
        """Returns the bytes per device of each group that is resident throughout a step."""
        sums = dict.fromkeys(STATE_GROUPS, 0)
        for array in self.arrays:
            if array.group in sums and array.memory is None:
                sums[array.group] += array.bytes_per_device
        return {name: total for name, total in sums.items() if total}

    def host_bytes(self) -> int:
        """Returns the bytes per device of the state that is offloaded to host memory."""
        return sum(array.bytes_per_device for array in self.arrays if array.memory is not None)

    def replicated(self) -> list[ArraySharding]:
        """Returns state and batch arrays that are replicated on all devices, largest first."""
        found = [
            array
            for array in self.arrays
            if array.group in STATE_GROUPS and array.memory is None and array.is_replicated
        ]
        return sorted(found, key=lambda array: -array.bytes_per_device)

    def verdict(self) -> str:
        """Returns a sentence on the state and the memory of a device."""
        total, limit = sum(self.totals().values()), self.machine.memory_per_device
        used = (
            f"{format_bytes(total)} of {format_bytes(limit)} on each device ({total / limit:.1%})"
        )
        if total > limit:
            return f"does not fit: {used}, before gradients and activations"
        return f"{used}; gradients and activations come on top"

    def warning(self) -> str | None:
        """Returns a warning about replicated state, if there is any."""
        replicated = self.replicated()
        if not replicated:
            return None
        total, largest = sum(array.bytes_per_device for array in replicated), replicated[0]
        return (
            f"warning: {format_bytes(total)} are replicated on every device, in "
            f"{plural(len(replicated), 'array')} of the state; the largest is {largest.path} "
            f"({format_bytes(largest.bytes_per_device)})"
        )

    def facts(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        replicated = self.replicated()
        parameters = sum(math.prod(array.shape) for array in self.group("parameters"))
        return {
            "experiment": self.experiment,
            "target": self.machine.name,
            "devices": self.machine.devices,
            "mesh": self.mesh,
            "parameters": {"total": parameters, "in_words": format_count(parameters)},
            "memory_bytes_per_device": self.machine.memory_per_device,
            "bytes_per_device": self.totals(),
            "host_bytes_per_device": self.host_bytes(),
            "replicated_bytes": sum(array.bytes_per_device for array in replicated),
            "replicated": [f"{array.group}: {array.path}" for array in replicated],
            "arrays": [array.facts() for array in self.arrays],
        }

    def report(self) -> str:
        """Returns it as text, as `dovetail config sharding` prints it."""
        from dovetail.targets.sharding_report import sharding_report

        return sharding_report(self)

    def page(self) -> str:
        """Returns it as an HTML page."""
        from dovetail.targets.sharding_page import sharding_page

        return sharding_page(self)

    def _repr_html_(self) -> str:
        """Shows the page in a notebook."""
        from dovetail.utils.html import frame

        return frame(self.page())


def machine_program(trainer: Trainer, machine: Machine) -> Program:
    """Returns the program of an experiment on the mesh of a machine that need not be here."""
    is_gpu = machine.chip.platform == "gpu"
    mesh = trainer.mesh.abstract_mesh(machine.devices, machine.slices, any_axis=is_gpu)
    return trainer.program_on(mesh)


def experiment_sharding(
    program: Program, machine: Machine, name: str = _UNNAMED, *, with_activations: bool = True
) -> ExperimentSharding:
    """Returns the sharding of a program on a machine; an uneven one is a ConfigError.

    Activations are found by tracing a step, which takes seconds for a large model.

    Args:
        program: of `machine_program`, or one on the machine's devices.
        machine: the machine.
        name: the name of the experiment.
        with_activations: whether to trace the step for them.
    """
    from dovetail.kernels import target_platform

    shard = _Sharder(program)
    state = shard.state()  # first, so that an error about uneven shards names a parameter
    activations: list[Activation] = []
    if with_activations:
        with target_platform(machine.chip.platform):
            activations = program.activations()
    arrays = [
        *state,
        *(
            shard("batch", "/".join(["batch", *keys]), leaf.axes, leaf.shape, leaf.dtype)
            for keys, leaf in _leaves(program.batch_spec)
        ),
        *(
            shard("activations", each.path, each.axes, each.shape, each.dtype, each.manual_axes)
            for each in dict.fromkeys(activations)
        ),
    ]
    sizes = {axis: size for axis, size in program.placement.mesh.shape.items() if size > 1}
    return ExperimentSharding(machine, sizes, tuple(arrays), name)


class _Sharder:
    """Shards arrays over the mesh of a program."""

    def __init__(self, program: Program) -> None:
        self.program, self.placement = program, program.placement

    def state(self) -> list[ArraySharding]:
        """Returns parameters, optimizer, averages and variables."""
        shapes, axes = self.program.state_shapes, self.program.state_axes
        found = []
        for field, group in _FIELDS.items():
            pairs = zip(_leaves(getattr(axes, field)), _leaves(getattr(shapes, field)), strict=True)
            for (keys, names), (_, leaf) in pairs:
                axes_of = self.program.rule_axes(keys, names)
                array = self(group, "/".join(keys), axes_of, leaf.shape, leaf.dtype.name)
                has_owner = group == "optimizer" and keys and keys[-1] in shapes.params
                owner = keys[-1] if has_owner else ""
                found.append(replace(array, memory=names.memory_kind, owner=owner))
        return found

    def __call__(
        self,
        group: str,
        path: str,
        axes: Any,
        shape: Any,
        dtype: str,
        manual_axes: Collection[str] = (),
    ) -> ArraySharding:
        """Shards an array; along `manual_axes` of the mesh, its shape is one device's shard."""
        mesh, rules = self.placement.mesh, self.placement.rules
        named = ", ".join(str(axis) for axis in axes)
        what = f"{path}: activation ({named})" if group == "activations" else path
        sharding = rules.sharding(axes, mesh, shape, what, manual_axes)
        mesh_axes = tuple(rules.mesh_axes(axes, mesh))
        # Shards differ along manual axes, whether or not a logical axis is sharded over them.
        used = {name for names in mesh_axes for name in names} | set(manual_axes)
        return ArraySharding(
            group=group,
            path=path,
            dtype=dtype,
            axes=tuple(axes),
            shape=tuple(
                length * math.prod(mesh.shape[name] for name in names if name in manual_axes)
                for length, names in zip(shape, mesh_axes, strict=True)
            ),
            mesh_axes=mesh_axes,
            local_shape=tuple(sharding.shard_shape(tuple(shape))),
            number_bytes=_itemsize(dtype),
            copies=mesh.size // math.prod(mesh.shape[name] for name in used),
            devices=mesh.size,
        )


def _leaves(tree: Any) -> Iterable[tuple[list[str], Any]]:
    """Yields leaves with their keys, such as `mu` and then the path of a parameter."""
    import jax

    for keys, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        names = [str(getattr(key, "key", getattr(key, "name", ""))) for key in keys]
        yield [name for name in names if name], leaf


def _itemsize(dtype: str) -> int:
    import jax.numpy as jnp

    return int(jnp.dtype(dtype).itemsize)
