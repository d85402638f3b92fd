"""`train --dry-run`: the data of a run, the cost of a step, and whether it fits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.cli.output import print_json
from dovetail.config import Config, json_values
from dovetail.targets import Machine, experiment_sharding, machine_program
from dovetail.utils import Progress, format_bytes, format_count, format_table, plural

if TYPE_CHECKING:
    from dovetail.trainer import Program, Trainer


def dry_run(config: Trainer.Config, folder: Path, as_json: bool, progress: Progress) -> int:
    """Checks what the run would check, compiles the step, and prints what it would take."""
    facts = _facts(config, folder, progress)
    progress.close()
    if as_json:
        print_json(facts)
    else:
        _print(facts)
    return 0


def dry_run_elsewhere(
    config: Trainer.Config, machine: Machine, as_json: bool, progress: Progress
) -> int:
    """Prints what is known of a run on a machine that is not here; nothing is compiled."""
    from dovetail.kernels import choices

    progress.stage("tracing the step")
    trainer = config.build()
    program = machine_program(trainer, machine)
    layout = experiment_sharding(program, machine)  # traces the step, which chooses the kernels
    state, limit = sum(layout.totals().values()), machine.memory_per_device
    facts = _known(config, trainer, program) | {
        "target": machine.name,
        "machine": str(machine),
        "usd_per_hour": machine.usd_per_hour,
        "price": vars(machine.chip.price) if machine.chip.price is not None else None,
        "argument_bytes": state,
        "memory_bytes": limit,
        "state_fits": state <= limit,
        "kernels": choices(),
    }
    progress.close()
    if as_json:
        print_json(facts)
        return 0
    _print_rows(
        [
            *_known_rows(facts),
            ("machine", facts["machine"]),
            ("mesh", ", ".join(f"{axis}={n}" for axis, n in facts["mesh"].items())),
            (
                "memory per device",
                f"{format_bytes(state)} of state and batch, of {format_bytes(limit)}",
            ),
            *([] if facts["state_fits"] else [("", "does not fit, even without activations")]),
            ("price", _cost(machine)),
            *_kernel_rows(facts),
            ("", "nothing was compiled: the machine is not here"),
        ]
    )
    return 0


def _cost(machine: Machine) -> str:
    price = machine.chip.price
    if price is None or machine.usd_per_hour is None:
        return "no public list price is known"
    return f"${machine.usd_per_hour:,.2f} per hour ({price.offer}, {price.date})"


@dataclass(frozen=True)
class Need:
    """The memory that a step needs and the memory that is available, in bytes."""

    needed: int
    available: int
    whose: str

    @property
    def fits(self) -> bool:
        """Whether there is enough."""
        return self.needed <= self.available

    def __str__(self) -> str:
        """Returns one line for people."""
        return (
            f"{'fits' if self.fits else 'does not fit'}: needs about {format_bytes(self.needed)}, "
            f"{self.whose} has {format_bytes(self.available)}"
        )


def _known(config: Trainer.Config, trainer: Trainer, program: Program) -> dict[str, Any]:
    """Returns what is known before anything is compiled."""
    from dovetail.data import HasVocabulary
    from dovetail.module import batch_items, parameter_specs

    source = trainer.input
    items = batch_items(program.batch_spec)
    return {
        "parameters": sum(spec.size for spec in parameter_specs(trainer.model).values()),
        "data": data_parts(config.input),
        "vocabulary": source.vocab_size if isinstance(source, HasVocabulary) else None,
        "batch": _batch_shape(program.batch_spec),
        "items_per_step": items,
        **{f"{kind}_per_step": count for kind, count in items.items()},
        "steps": trainer.steps,
        "step_flops": program.step_flops(),
        "mesh": {axis: n for axis, n in program.placement.mesh.shape.items() if n > 1},
    }


def _batch_shape(spec: Any) -> list[int]:
    """Returns the examples of a batch, and the length of their sequence if they have one."""
    import jax

    from dovetail.module import batch_size

    leaves = jax.tree.leaves(spec)
    axes = [pair for leaf in leaves for pair in zip(leaf.axes, leaf.shape, strict=True)]
    lengths = [length for axis, length in axes if axis == "sequence"]
    return [batch_size(spec), *([max(lengths)] if lengths else [])]


def _facts(config: Trainer.Config, folder: Path, progress: Progress) -> dict[str, Any]:
    from dovetail.kernels import choices

    trainer = config.build()
    progress.stage("checking the data and tracing the step")
    trainer.check(folder, prepare=False)
    program = trainer.program()
    progress.stage("loading or compiling the step")
    memory = program.lowered.compile().memory_analysis()
    need = _need(memory, program.placement.device_mesh.devices.flatten())
    return _known(config, trainer, program) | {
        "argument_bytes": memory.argument_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "needed_bytes": need.needed if need else None,
        "memory_bytes": need.available if need else None,
        "fits": need.fits if need else None,
        "memory": str(need) if need else None,
        "kernels": choices(),
    }


def data_parts(config: Config[Any]) -> dict[str, str]:
    """Names the components of an input, each with the values that were set on it."""
    children = {name: getattr(config, name) for name in config.fields()}
    return {
        name: _named(child) for name, child in children.items() if isinstance(child, Config)
    } or {"input": _named(config)}


def _named(part: Config[Any]) -> str:
    values = json_values(part)
    shown = [f"{name}={values[name]}" for name in part.fields() if part.is_set(name)]
    name = type(part).display_name()
    return f"{name} ({', '.join(shown)})" if shown else name


def _need(memory: Any, devices: Any) -> Need | None:
    """Compares needed and available memory; None if the device does not report its memory."""
    from dovetail.utils import host_memory_bytes

    # Donated inputs are reused for the outputs, except for a few metrics.
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    each = memory.argument_size_in_bytes + memory.temp_size_in_bytes + results
    if devices[0].platform == "cpu":  # the devices of one machine share its memory
        here = sum(device.process_index == devices[0].process_index for device in devices)
        return Need(here * each, host_memory_bytes(), "this machine")
    import jax

    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    return Need(each, limit, "each device") if limit is not None else None


def _print(facts: dict[str, Any]) -> None:
    rows = [
        *_known_rows(facts),
        ("memory per device", f"{format_bytes(facts['argument_bytes'])} of state and batch"),
        ("", f"{format_bytes(facts['temporary_bytes'])} of temporaries"),
        *([("", facts["memory"])] if facts["memory"] else []),
        *_kernel_rows(facts),
    ]
    _print_rows(rows)


def _kernel_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    return [("kernel", line) for line in facts["kernels"]]


def _known_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    steps = plural(facts["steps"], "step")
    items = [
        (f"{kind} per step", f"{format_count(count)}{_shape(count, *facts['batch'])} x {steps}")
        for kind, count in facts["items_per_step"].items()
    ]
    vocabulary = facts["vocabulary"]
    return [
        ("parameters", format_count(facts["parameters"])),
        *items,
        *facts["data"].items(),
        *([] if vocabulary is None else [("vocabulary", f"{vocabulary:,} tokens")]),
        ("work per step", f"{format_count(facts['step_flops'])} FLOPs"),
    ]


def _shape(count: int, examples: int, length: int | None = None) -> str:
    """Says how a batch is made up, unless the number of its items says it."""
    if length is not None:
        return f" ({examples} sequences of {length})"
    return f" ({plural(examples, 'example')})" if count != examples else ""


def _print_rows(rows: list[tuple[str, str]]) -> None:
    print(format_table(rows))
