"""`train --dry-run`: what a run would train on, what a step would take, and whether it fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dovetail.cli.output import count, print_json, size
from dovetail.config import Config, json_values

if TYPE_CHECKING:
    from dovetail.trainer import Trainer


def dry_run(config: Trainer.Config, as_json: bool) -> int:
    """Compiles the step with no data, and tells what it would take."""
    facts = _facts(config)
    if as_json:
        print_json(facts)
    else:
        _print(facts)
    return 0


@dataclass(frozen=True)
class Need:
    """How much memory a step takes, and how much there is for it, in bytes."""

    needed: int
    there: int
    whose: str

    @property
    def fits(self) -> bool:
        """Says whether there is enough."""
        return self.needed <= self.there

    def __str__(self) -> str:
        """Says it plainly."""
        return (
            f"{'fits' if self.fits else 'does not fit'}: needs about {size(self.needed)}, "
            f"{self.whose} has {size(self.there)}"
        )


def _facts(config: Trainer.Config) -> dict[str, Any]:
    from dovetail.kernels import choices
    from dovetail.module import parameter_specs

    trainer = config.build()
    program = trainer.program()
    memory = program.lowered.compile().memory_analysis()
    batch, sequence = program.batch_spec.tokens.shape
    need = _need(memory, program.placement.mesh.devices.flatten())
    return {
        "parameters": sum(spec.size for spec in parameter_specs(trainer.model).values()),
        "data": data_parts(config.input),
        "vocabulary": trainer.input.vocab_size,
        "batch": [batch, sequence],
        "tokens_per_step": batch * sequence,
        "steps": trainer.steps,
        "step_flops": program.step_flops(),
        "mesh": {axis: n for axis, n in program.placement.mesh.shape.items() if n > 1},
        "argument_bytes": memory.argument_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "needed_bytes": need.needed if need else None,
        "memory_bytes": need.there if need else None,
        "fits": need.fits if need else None,
        "memory": str(need) if need else None,
        "kernels": choices(),
    }


def data_parts(config: Config[Any]) -> dict[str, str]:
    """Names the parts of an input, whatever it is, each with the values that were set on it."""
    children = {name: getattr(config, name) for name in config.fields()}
    return {
        name: _named(child) for name, child in children.items() if isinstance(child, Config)
    } or {"input": _named(config)}


def _named(part: Config[Any]) -> str:
    values = json_values(part)
    told = [f"{name}={values[name]}" for name in part.fields() if part.is_set(name)]
    name = type(part).display_name()
    return f"{name} ({', '.join(told)})" if told else name


def _need(memory: Any, devices: Any) -> Need | None:
    """Compares what a step takes with what there is; None where the device does not say."""
    from dovetail.hardware import machine_memory_bytes

    # What comes out takes the place of what went in, but for a few figures.
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    each = memory.argument_size_in_bytes + memory.temp_size_in_bytes + results
    if devices[0].platform == "cpu":  # the devices of one machine share its memory
        here = sum(device.process_index == devices[0].process_index for device in devices)
        return Need(here * each, machine_memory_bytes(), "this machine")
    import jax

    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    return Need(each, limit, "each device") if limit is not None else None


def _print(facts: dict[str, Any]) -> None:
    batch, sequence = facts["batch"]
    shape = f"({batch} sequences of {sequence})"
    rows = [
        ("parameters", count(facts["parameters"])),
        ("tokens a step", f"{count(facts['tokens_per_step'])} {shape} x {facts['steps']} steps"),
        *facts["data"].items(),
        ("vocabulary", f"{facts['vocabulary']:,} tokens"),
        ("work a step", f"{count(facts['step_flops'])} FLOPs"),
        ("memory a device", f"{size(facts['argument_bytes'])} of state and batch"),
        ("", f"{size(facts['temporary_bytes'])} of temporaries"),
        *([("", facts["memory"])] if facts["memory"] else []),
        *(("kernel", line) for line in facts["kernels"]),
    ]
    for label, text in rows:
        print(f"{label:<15}  {text}")
