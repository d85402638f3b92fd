"""The machine that this process is on, compared with a target."""

from __future__ import annotations

from dovetail.targets.machine import Machine
from dovetail.targets.virtual import share_one_cpu


def need_no_accelerator() -> None:
    """Keeps JAX from looking for accelerators, where machines are described and none is used.

    Without this, JAX starts whatever plugins are installed, and those that come with the compilers
    find no device and complain. What the user has asked for (JAX_PLATFORMS) stays as it is.
    """
    import jax

    if not jax.config.values["jax_platforms"]:
        jax.config.update("jax_platforms", "cpu")


def prepare_devices(machine: Machine | None) -> None:
    """Makes the virtual devices of a CPU target, where JAX has not chosen its devices yet."""
    if machine is None or machine.chip.kind != "cpu" or machine.any_number:
        return
    import jax

    try:
        jax.config.update("jax_num_cpu_devices", machine.devices)
    except RuntimeError:  # the devices are chosen already; `difference_here` tells if they do
        return
    if machine.devices > 1:
        share_one_cpu()


def device_here() -> str:
    """Returns what JAX calls the devices of this process."""
    import jax

    return str(jax.devices()[0].device_kind)


def difference_here(machine: Machine) -> str | None:
    """Returns how the devices of this process differ from a target, or None where they do not."""
    import jax

    from dovetail.hardware import chip_for_device

    first = jax.devices()[0]
    here = f"{jax.device_count()} x {first.device_kind} ({first.platform})"
    if machine.chip.kind == "cpu":
        alike = first.platform == "cpu"
    elif machine.chip.device_kinds:
        alike = chip_for_device(first.device_kind) == machine.chip
    else:  # what JAX calls it is not known; the platform is
        alike = first.platform == machine.chip.kind
    if alike and (machine.any_number or jax.device_count() == machine.devices):
        return None
    return f"it has {machine.devices} devices of {machine.chip.name}, and here are {here}"
