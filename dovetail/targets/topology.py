"""Devices for ahead-of-time compilation: what the XLA compilers need in place of real hardware.

XLA compiles a whole program from a description of the machine. The devices that these functions
return have a platform, a kind and coordinates. A mesh can be made of them, and a function lowered
for that mesh compiles. It cannot run.

    devices = tpu_topology("v5p:2x2x1")
    mesh = MeshLayout.Config(fsdp=4).build().mesh(devices)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from dovetail.config import ConfigError
from dovetail.hardware import Chip, chip_named
from dovetail.targets.machine import Machine
from dovetail.utils import can_compile_for

# Without these, libtpu asks Google Cloud about the machine that it runs on, and locks out a second
# process. The accelerator type need not be the one that is compiled for.
LIBTPU_SETTINGS = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5p-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def missing_compiler(machine: Machine) -> str:
    """Returns why a machine cannot be compiled for here, and what to install; empty if it can."""
    platform, chip = machine.chip.platform, machine.chip
    if platform == "cpu":
        return ""
    if platform == "gpu" and chip.gpu is None:
        return f"the catalogue has no compiler specification of {chip.name}"
    if platform not in ("tpu", "gpu"):
        return f"there is no compiler for {chip.name} here"
    if can_compile_for(platform):
        return ""
    package = {"tpu": "libtpu", "gpu": "JAX's CUDA plugin"}[platform]
    return (
        f"compiling for {chip.name} needs {package}: `pip install 'dovetail[compile]'`; "
        "no accelerator is needed"
    )


def topology_devices(machine: Machine) -> tuple[Any, ...]:
    """Returns the devices to compile for; for a CPU target, devices of this process."""
    if machine.chip.platform == "tpu":
        options = {k: v for k, v in machine.topology_options.items() if k != "num_slices"}
        return tuple(tpu_topology(machine.topology, machine.slices, **options))
    if machine.chip.platform == "gpu":
        hosts, per_host = machine.topology.split("x")[1:]
        return tuple(gpu_topology(machine.chip.name, machine.slices * int(hosts), int(per_host)))
    import jax

    found: Sequence[Any] = jax.devices("cpu")
    return tuple(found[: machine.devices])


def tpu_topology(name: str, slices: int = 1, **options: Any) -> Sequence[Any]:
    """Returns the devices of TPU slices, for compiling only.

    Args:
        name: version and slice shape as libtpu writes them: `v5e:4x4`, `v5p:4x8x8`, `tpu7x:2x2x1`.
        slices: how many such slices the data-center network joins.
        **options: further options of libtpu, such as `chip_config_name`.
    """
    if not can_compile_for("tpu"):
        raise ConfigError(
            "Compiling for TPUs needs libtpu, which is not installed. Install it with "
            "`pip install 'dovetail[tpu]'`; no TPU is needed."
        )
    for variable, value in LIBTPU_SETTINGS.items():
        os.environ.setdefault(variable, value)
    from jax.experimental import topologies

    options |= {"num_slices": slices} if slices > 1 else {}
    try:
        return list(topologies.get_topology_desc(name, "tpu", **options).devices)
    except RuntimeError as error:
        raise ConfigError(
            f"libtpu knows no topology {name!r} of {slices} slices: {_first_line(error)} Write "
            "version and shape, such as v5e:4x4, v5p:2x2x1, v6e:4x4 or tpu7x:2x2x1."
        ) from error


def gpu_topology(name: str, hosts: int = 1, gpus_per_host: int = 8) -> Sequence[Any]:
    """Returns the devices of hosts with NVIDIA GPUs, for compiling only.

    Args:
        name: a GPU by its catalogue name, such as `nvidia-h100`.
        hosts: how many hosts.
        gpus_per_host: how many GPUs each has, joined by NVLink.
    """
    target_config = gpu_target_config(chip_named(name))
    if not can_compile_for("gpu"):
        raise ConfigError(
            "Compiling for GPUs needs JAX's CUDA plugin, which is not installed. Install it with "
            "`pip install 'dovetail[cuda]'`; no GPU and no driver is needed."
        )
    from jax.experimental import topologies

    try:
        topology = topologies.get_topology_desc(
            name,
            platform="cuda",
            target_config=target_config,
            topology=f"1x{hosts}x{gpus_per_host}",
        )
    except NotImplementedError as error:  # JAX raises it when the plugin did not start
        raise ConfigError(
            "JAX's CUDA plugin is installed and could not be started: without a GPU it must not "
            "look for one. Set JAX_PLATFORMS=cpu."
        ) from error
    return list(topology.devices)


def gpu_target_config(chip: Chip) -> str:
    """Returns XLA's `GpuTargetConfigProto` of a GPU in text format."""
    gpu = chip.gpu
    if gpu is None:
        raise ConfigError(
            f"The catalogue has no compiler specification of {chip.name}, so XLA cannot compile "
            "for it. Add a GpuSpec to its entry in dovetail/hardware/nvidia.py."
        )
    major, minor = gpu.compute_capability
    device_info = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "threads_per_core_limit": 2048,
        "shared_memory_per_block": 48 << 10,
        "shared_memory_per_block_optin": gpu.shared_memory_per_sm - (1 << 10),
        "shared_memory_per_core": gpu.shared_memory_per_sm,
        "registers_per_core_limit": gpu.registers_per_sm,
        "registers_per_block_limit": gpu.registers_per_sm,
        "fpus_per_core": gpu.fpus_per_sm,
        "core_count": gpu.sm_count,
        "block_dim_limit_x": (1 << 31) - 1,
        "block_dim_limit_y": (1 << 16) - 1,
        "block_dim_limit_z": (1 << 16) - 1,
        "clock_rate_ghz": gpu.clock_hz / 1e9,
        "l2_cache_size": gpu.l2_bytes,
        "device_memory_size": gpu.reported_memory_bytes,
        "memory_bandwidth": int(chip.memory_bandwidth),
    }
    return "\n".join(
        [
            "gpu_device_info {",
            *(f"  {name}: {value}" for name, value in device_info.items()),
            f"  cuda_compute_capability {{ major: {major} minor: {minor} }}",
            "}",
            'platform_name: "CUDA"',
            "dnn_version_info { major: 9 minor: 12 }",
            f'device_description_str: "{chip.device_kinds[0]}"',
        ]
    )


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".") + "."
