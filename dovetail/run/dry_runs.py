"""A dry run: the data of a run, the cost of a step, and whether it fits. Nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from dovetail.config import Config, json_values
from dovetail.data import HasVocabulary
from dovetail.kernels import choices
from dovetail.module import batch_items, batch_size, parameter_specs
from dovetail.run.contents import use_contents
from dovetail.runtime import RunFolder
from dovetail.targets import Machine, experiment_sharding, machine_program
from dovetail.utils import format_bytes, host_memory_bytes

if TYPE_CHECKING:
    from dovetail.trainer import Program, Trainer


@dataclass(frozen=True)
class RunSize:
    """What is known of a run before anything is compiled.

    Attributes:
        parameters: the number of parameters.
        data: the components of the input by name, each with the values that are set on it.
        vocabulary: the number of token ids; None for an input without tokens.
        batch: the examples of a batch, and the length of their sequence if they have one.
        items_per_step: how many items of what kind a step consumes.
        steps: the number of steps.
        step_flops: floating-point operations of a step.
        mesh: the mesh axes of more than one device.
    """

    parameters: int
    data: dict[str, str]
    vocabulary: int | None
    batch: tuple[int, ...]
    items_per_step: dict[str, int]
    steps: int
    step_flops: float
    mesh: dict[str, int]

    @classmethod
    def of(cls, trainer: Trainer, program: Program) -> RunSize:
        """Returns the size of a trainer."""
        config: Any = trainer.config
        source = trainer.input
        return cls(
            parameters=sum(spec.size for spec in parameter_specs(trainer.model).values()),
            data=data_components(config.input),
            vocabulary=source.vocab_size if isinstance(source, HasVocabulary) else None,
            batch=_batch_shape(program.batch_spec),
            items_per_step=batch_items(program.batch_spec),
            steps=trainer.steps,
            step_flops=program.step_flops(),
            mesh={axis: n for axis, n in program.placement.mesh.shape.items() if n > 1},
        )

    def facts(self) -> dict[str, Any]:
        """Returns it as JSON-serializable data."""
        by_kind = {f"{kind}_per_step": count for kind, count in self.items_per_step.items()}
        return {**vars(self), "batch": list(self.batch), **by_kind}


@dataclass(frozen=True)
class MemoryNeed:
    """The memory that a step needs and the memory that is available, in bytes."""

    needed: int
    available: int
    owner: str

    @property
    def fits(self) -> bool:
        """Whether there is enough."""
        return self.needed <= self.available

    def __str__(self) -> str:
        """Returns one line for people."""
        return (
            f"{'fits' if self.fits else 'does not fit'}: needs about {format_bytes(self.needed)}, "
            f"{self.owner} has {format_bytes(self.available)}"
        )


@dataclass(frozen=True)
class DryRun:
    """A dry run on this machine: the step was compiled.

    Attributes:
        size: what is known without compiling.
        argument_bytes: state and batch of a device.
        temporary_bytes: temporaries of a device.
        memory: needed and available memory; None if the device does not report its memory.
        kernels: the kernel that each op chose.
    """

    size: RunSize
    argument_bytes: int
    temporary_bytes: int
    memory: MemoryNeed | None
    kernels: tuple[str, ...]

    @property
    def fits(self) -> bool | None:
        """Whether there is enough memory; None if that is unknown."""
        return self.memory.fits if self.memory is not None else None

    def facts(self) -> dict[str, Any]:
        """Returns it as JSON-serializable data."""
        return self.size.facts() | {
            "argument_bytes": self.argument_bytes,
            "temporary_bytes": self.temporary_bytes,
            "needed_bytes": self.memory.needed if self.memory is not None else None,
            "memory_bytes": self.memory.available if self.memory is not None else None,
            "fits": self.fits,
            "memory": str(self.memory) if self.memory is not None else None,
            "kernels": list(self.kernels),
        }


@dataclass(frozen=True)
class RemoteDryRun:
    """A dry run for a machine that is not here: the step was traced, but not compiled.

    Attributes:
        size: what is known without compiling.
        machine: the machine.
        argument_bytes: state and batch of a device.
        kernels: the kernel that each op would choose there.
    """

    size: RunSize
    machine: Machine
    argument_bytes: int
    kernels: tuple[str, ...]

    @property
    def fits(self) -> bool | None:
        """False if state and batch exceed the memory; otherwise activations decide: None."""
        return None if self.state_fits else False

    @property
    def state_fits(self) -> bool:
        """Whether there is enough memory for state and batch."""
        return self.argument_bytes <= self.machine.memory_per_device

    def facts(self) -> dict[str, Any]:
        """Returns it as JSON-serializable data."""
        machine = self.machine
        return self.size.facts() | {
            "target": machine.name,
            "machine": str(machine),
            "usd_per_hour": machine.usd_per_hour,
            "price": vars(machine.chip.price) if machine.chip.price is not None else None,
            "argument_bytes": self.argument_bytes,
            "memory_bytes": machine.memory_per_device,
            "state_fits": self.state_fits,
            "kernels": list(self.kernels),
        }


def dry_run(
    config: Trainer.Config, folder: Path, on_progress: Callable[[str], None] = lambda stage: None
) -> DryRun:
    """Checks what a run in a folder would check, and compiles the step for this machine.

    Args:
        config: the experiment.
        folder: the run folder, which need not exist.
        on_progress: called with a message before each long operation.
    """
    trainer = config.build()
    use_contents(RunFolder(folder), trainer.input, on_progress)
    on_progress("checking the data and tracing the step")
    trainer.check(folder, prepare=False)
    program = trainer.program()
    on_progress("loading or compiling the step")
    memory = program.lowered.compile().memory_analysis()
    return DryRun(
        RunSize.of(trainer, program),
        memory.argument_size_in_bytes,
        memory.temp_size_in_bytes,
        _memory_need(memory, program.placement.device_mesh.devices.flatten()),
        tuple(choices()),
    )


def dry_run_elsewhere(
    config: Trainer.Config,
    machine: Machine,
    on_progress: Callable[[str], None] = lambda stage: None,
) -> RemoteDryRun:
    """Returns what is known of a run on a machine that is not here; nothing is compiled."""
    on_progress("tracing the step")
    trainer = config.build()
    program = machine_program(trainer, machine)
    layout = experiment_sharding(program, machine)  # traces the step, which chooses the kernels
    state = sum(layout.totals().values())
    return RemoteDryRun(RunSize.of(trainer, program), machine, state, tuple(choices()))


def data_components(config: Config[Any]) -> dict[str, str]:
    """Names the components of an input, each with the values that are set on it."""
    children = {name: getattr(config, name) for name in config.fields()}
    return {
        name: _named(child) for name, child in children.items() if isinstance(child, Config)
    } or {"input": _named(config)}


def _named(component: Config[Any]) -> str:
    values = json_values(component)
    shown = [f"{name}={values[name]}" for name in component.fields() if component.is_set(name)]
    name = type(component).display_name()
    return f"{name} ({', '.join(shown)})" if shown else name


def _batch_shape(spec: Any) -> tuple[int, ...]:
    leaves = jax.tree.leaves(spec)
    axes = [pair for leaf in leaves for pair in zip(leaf.axes, leaf.shape, strict=True)]
    lengths = [length for axis, length in axes if axis == "sequence"]
    return (batch_size(spec), *([max(lengths)] if lengths else []))


def _memory_need(memory: Any, devices: Any) -> MemoryNeed | None:
    # Donated inputs are reused for the outputs, except for a few metrics.
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    each = memory.argument_size_in_bytes + memory.temp_size_in_bytes + results
    if devices[0].platform == "cpu":  # the devices of one machine share its memory
        here = sum(device.process_index == devices[0].process_index for device in devices)
        return MemoryNeed(here * each, host_memory_bytes(), "this machine")
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    return MemoryNeed(each, limit, "each device") if limit is not None else None
