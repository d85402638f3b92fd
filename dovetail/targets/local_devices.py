"""The devices of this process: compared with a target, and virtual ones on a CPU."""

from __future__ import annotations

import os
import sys

from dovetail.targets.machine import Machine

# By default XLA starts independent collectives as soon as each is ready, in an order that differs
# between devices. Some devices then wait in one collective, some in another, and all deadlock. Seen
# with experts on data x fsdp: four runs of four without this flag, and none of five with it.
_IN_ORDER = "--xla_cpu_enable_concurrency_optimized_scheduler=false"

# With many devices on few cores, a collective can wait long for its last device. By default XLA
# aborts after 40 seconds.
_TIMEOUTS = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=120",
    "--xla_cpu_collective_call_terminate_timeout_seconds=600",
)

# An unknown XLA flag aborts the process. These were tried with 0.8.0, 0.9.0, 0.10.2 and 0.12.0.
_FIRST_UNTRIED_JAX = (0, 13)


def default_to_cpu() -> None:
    """Keeps JAX from looking for accelerators, unless the user has set JAX_PLATFORMS.

    Commands that only compile call this. Otherwise JAX starts every installed plugin, and plugins
    that come with the compilers complain when they find no device.
    """
    if "jax" not in sys.modules:  # it reads the variable when something imports it
        os.environ["JAX_PLATFORMS"] = os.environ.get("JAX_PLATFORMS") or "cpu"
        return
    import jax

    if not jax.config.values["jax_platforms"]:
        jax.config.update("jax_platforms", "cpu")


def create_virtual_devices(machine: Machine | None) -> None:
    """Creates the virtual devices of a CPU target, unless JAX has initialized its devices."""
    if machine is None or machine.chip.platform != "cpu" or machine.any_device_count:
        return
    import jax

    try:
        jax.config.update("jax_num_cpu_devices", machine.devices)
    except RuntimeError:  # already initialized; `local_mismatch` reports a wrong number
        return
    if machine.devices > 1:
        set_virtual_device_flags()


def set_virtual_device_flags() -> None:
    """Sets the XLA flags for several devices on one CPU, before JAX initializes its devices.

    The user's own flags come last, so that they win.
    """
    import jax

    if jax.__version_info__ >= _FIRST_UNTRIED_JAX:
        return
    theirs = os.environ.get("XLA_FLAGS", "").split()
    ours = [flag for flag in (_IN_ORDER, *_TIMEOUTS) if flag not in theirs]
    os.environ["XLA_FLAGS"] = " ".join([*ours, *theirs])


def local_device_kind() -> str:
    """Returns JAX's device kind of this process."""
    import jax

    return str(jax.devices()[0].device_kind)


def local_mismatch(machine: Machine) -> str | None:
    """Returns how the devices of this process differ from a target, or None if they match."""
    import jax

    from dovetail.hardware import chip_for_device

    first = jax.devices()[0]
    here = f"{jax.device_count()} x {first.device_kind} ({first.platform})"
    if machine.chip.platform == "cpu":
        matches = first.platform == "cpu"
    elif machine.chip.device_kinds:
        matches = chip_for_device(first.device_kind) == machine.chip
    else:  # the device kind is unknown, but the platform is not
        matches = first.platform == machine.chip.platform
    if matches and (machine.any_device_count or jax.device_count() == machine.devices):
        return None
    return f"it has {machine.devices} devices of {machine.chip.name}, but this process has {here}"
