"""Devices that are not there: what the compilers for TPUs and GPUs need in place of them.

XLA compiles a whole program for a machine from its description alone. The devices that these
functions return have a platform, a kind and a place in the machine; a mesh is made of them as of
any others, and a function lowered for their shardings compiles. It cannot run.

    devices = tpu_topology("v5p:2x2x1")
    mesh = MeshLayout.Config(fsdp=4).build().mesh(devices)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from dovetail.config import ConfigError, did_you_mean

# libtpu asks Google's cloud about the machine that it runs on, unless it is told; and it locks out
# a second process. The type of accelerator need not be the one that is compiled for.
LIBTPU_SETTINGS = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5p-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


@dataclass(frozen=True)
class GpuFigures:
    """What XLA asks about a GPU: from NVIDIA's architecture papers.

    B200 and GB200 are as they report themselves; the latter, and the A100 of 40 GB, were read in
    https://github.com/openxla/xla/tree/main/xla/backends/gpu/target_config/specs.
    """

    device_kind: str
    capability: tuple[int, int]
    cores: int
    """Streaming multiprocessors."""
    clock_ghz: float
    shared_memory_per_core: int
    level_two_cache: int
    memory_bytes: int
    memory_bandwidth: float


GPU_FIGURES = {
    "a100": GpuFigures(
        "NVIDIA A100-SXM4-80GB", (8, 0), 108, 1.41, 164 << 10, 40 << 20, 80 << 30, 2.039e12
    ),
    "a100-40gb": GpuFigures(
        "NVIDIA A100-SXM4-40GB", (8, 0), 108, 1.41, 164 << 10, 40 << 20, 40370 << 20, 1.555e12
    ),
    "h100": GpuFigures(
        "NVIDIA H100 80GB HBM3", (9, 0), 132, 1.98, 228 << 10, 50 << 20, 80 << 30, 3.35e12
    ),
    "h200": GpuFigures("NVIDIA H200", (9, 0), 132, 1.98, 228 << 10, 50 << 20, 141 * 10**9, 4.8e12),
    "b200": GpuFigures(
        "NVIDIA B200", (10, 0), 148, 1.965, 228 << 10, 129536 << 10, 182631 << 20, 8e12
    ),
    "gb200": GpuFigures(
        "NVIDIA GB200", (10, 0), 152, 2.062, 228 << 10, 132352 << 10, 188730 << 20, 8e12
    ),
}


def tpu_topology(name: str, slices: int = 1, **more: Any) -> Sequence[Any]:
    """Returns the devices of TPU slices, as JAX has them, for compiling only.

    Args:
        name: version and shape as libtpu knows them: `v5e:4x4`, `v5p:4x8x8`, `tpu7x:2x2x1`.
        slices: how many such slices are joined by the data-centre network.
        **more: what else libtpu must be told, such as `chip_config_name`.
    """
    if not can_compile_for("tpu"):
        raise ConfigError(
            "Compiling for TPUs needs libtpu, which is not installed. Install it with "
            "`pip install 'dovetail[tpu]'`; no TPU is needed."
        )
    for variable, value in LIBTPU_SETTINGS.items():
        os.environ.setdefault(variable, value)
    from jax.experimental import topologies

    options = more | ({"num_slices": slices} if slices > 1 else {})
    try:
        return list(topologies.get_topology_desc(name, "tpu", **options).devices)
    except RuntimeError as error:
        raise ConfigError(
            f"libtpu knows no topology {name!r} of {slices} slices: {_first_line(error)} Write "
            "version and shape, such as v5e:4x4, v5p:2x2x1, v6e:4x4 or tpu7x:2x2x1."
        ) from error


def gpu_topology(name: str, hosts: int = 1, gpus_per_host: int = 8) -> Sequence[Any]:
    """Returns the devices of machines with NVIDIA GPUs, as JAX has them, for compiling only.

    Args:
        name: one of `GPU_FIGURES`.
        hosts: how many machines.
        gpus_per_host: how many GPUs each has, joined by NVLink.
    """
    if name not in GPU_FIGURES:
        raise ConfigError(
            f"There are no figures of a GPU {name!r}. " + did_you_mean(name, GPU_FIGURES)
        )
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
            target_config=target_text(GPU_FIGURES[name]),
            topology=f"1x{hosts}x{gpus_per_host}",
        )
    except NotImplementedError as error:  # that is how JAX says that the plugin is not running
        raise ConfigError(
            "JAX's CUDA plugin is installed and could not be started: without a GPU it must not "
            "look for one. Set JAX_PLATFORMS=cpu."
        ) from error
    return list(topology.devices)


def can_compile_for(platform: str) -> bool:
    """Returns whether the compiler for `tpu` or `gpu` is installed; it is not loaded."""
    needed = {
        "tpu": ("libtpu",),
        "gpu": ("jax_cuda13_plugin", "jax_cuda12_plugin"),
    }[platform]
    return any(find_spec(module) is not None for module in needed)


def target_text(figures: GpuFigures) -> str:
    """Writes the figures of a GPU as XLA's `GpuTargetConfigProto` in text form."""
    major, minor = figures.capability
    # What all data-centre GPUs since 2020 have in common.
    numbers = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "threads_per_core_limit": 2048,
        "shared_memory_per_block": 48 << 10,
        "shared_memory_per_block_optin": figures.shared_memory_per_core - (1 << 10),
        "shared_memory_per_core": figures.shared_memory_per_core,
        "registers_per_core_limit": 1 << 16,
        "registers_per_block_limit": 1 << 16,
        "fpus_per_core": 64 if major == 8 else 128,
        "core_count": figures.cores,
        "block_dim_limit_x": (1 << 31) - 1,
        "block_dim_limit_y": (1 << 16) - 1,
        "block_dim_limit_z": (1 << 16) - 1,
        "clock_rate_ghz": figures.clock_ghz,
        "l2_cache_size": figures.level_two_cache,
        "device_memory_size": figures.memory_bytes,
        "memory_bandwidth": int(figures.memory_bandwidth),
    }
    lines = [f"  {name}: {value}" for name, value in numbers.items()]
    return "\n".join(
        [
            "gpu_device_info {",
            *lines,
            f"  cuda_compute_capability {{ major: {major} minor: {minor} }}",
            "}",
            'platform_name: "CUDA"',
            "dnn_version_info { major: 9 minor: 12 }",
            f'device_description_str: "{figures.device_kind}"',
        ]
    )


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".") + "."
