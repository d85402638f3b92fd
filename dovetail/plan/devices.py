"""The devices of a machine that is not here, as the compilers want them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dovetail.hardware import (
    GPU_FIGURES,
    can_compile_for,
    gpu_topology,
    measured_cpu,
    tpu_topology,
)
from dovetail.targets import Machine


def missing_compiler(machine: Machine) -> str:
    """Returns what keeps us from compiling for a machine, and what to do; empty if nothing does."""
    kind = machine.chip.kind
    if kind == "cpu":
        return ""
    if kind == "gpu" and _figures(machine) not in GPU_FIGURES:
        return f"no compiler figures are known of {machine.chip.name}"
    if kind not in ("tpu", "gpu"):
        return f"there is no compiler for {machine.chip.name} here"
    if can_compile_for(kind):
        return ""
    what = {"tpu": "libtpu", "gpu": "JAX's CUDA plugin"}[kind]
    return (
        f"compiling for {machine.chip.name} needs {what}: `pip install 'dovetail[compile]'`; "
        "no accelerator is needed"
    )


def measured(machine: Machine) -> Machine:
    """Returns the machine with its rates: those of this CPU are measured at first use."""
    if machine.chip.kind != "cpu":
        return machine
    import jax

    count = jax.local_device_count("cpu") if machine.any_number else machine.devices
    # The virtual devices of a CPU share one chip.
    return replace(machine, chip=replace(measured_cpu(), devices_per_chip=count), chips=1)


def devices_of(machine: Machine) -> tuple[Any, ...]:
    """Returns the devices to compile for; on a CPU, those that are here."""
    if machine.chip.kind == "tpu":
        return tuple(tpu_topology(machine.topology, machine.slices, **_chip_options(machine)))
    if machine.chip.kind == "gpu":
        hosts, each = machine.topology.split("x")[1:]
        return tuple(gpu_topology(_figures(machine), machine.slices * int(hosts), int(each)))
    import jax

    found: Sequence[Any] = jax.devices("cpu")
    return tuple(found[: machine.devices])


def _figures(machine: Machine) -> str:
    """Returns what the GPU's figures are called: `h100` of `nvidia-h100`."""
    return machine.chip.name.removeprefix("nvidia-").removesuffix("-80gb")


def _chip_options(machine: Machine) -> dict[str, Any]:
    return {k: v for k, v in machine.topology_options.items() if k != "num_slices"}
