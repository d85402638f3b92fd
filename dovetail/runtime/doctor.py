"""The doctor: what this machine has for training, and what it lacks."""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from dovetail.hardware import chip_for_device
from dovetail.runtime.cpu import measured_cpu
from dovetail.runtime.failures import explain_backend_failure
from dovetail.utils import cpu_cores, host_memory_bytes, user_cache_folder

_PACKAGES = (
    "dovetail",
    "jax",
    "jaxlib",
    "optax",
    "orbax-checkpoint",
    "tokenizers",
    "numpy",
    "rich",
)
EXTRAS = {"libtpu": "tpu", "jax-cuda13-plugin": "cuda"}
"""Optional packages, each with the extra that installs it."""

_MIN_CACHE_BYTES = 1e9


@dataclass(frozen=True)
class HostReport:
    """The host of this process.

    Attributes:
        system: the operating system and the architecture.
        python: the version of Python.
        cores: CPU cores that this process may use.
        memory_bytes: the memory of the host.
        cache_folder: the folder of prepared data and compiled programs.
        cache_free_bytes: free space there.
        cache_writable: whether this user may write there.
    """

    system: str
    python: str
    cores: int
    memory_bytes: int
    cache_folder: Path
    cache_free_bytes: int
    cache_writable: bool


@dataclass(frozen=True)
class DevicesReport:
    """The devices that JAX uses by default.

    Attributes:
        platform: JAX's name of their platform, such as `tpu`.
        kind: the kind of the first.
        count: how many there are, on all hosts.
        peak_flops: FLOP/s of one by precision; None for a chip that the catalogue lacks. Those of
            a CPU are measured.
    """

    platform: str
    kind: str
    count: int
    peak_flops: dict[str, float] | None


@dataclass(frozen=True)
class MachineReport:
    """What this machine has for training.

    Attributes:
        host: the host of this process.
        devices: the devices; None if JAX cannot use any.
        device_error: why JAX cannot use any; empty if it can.
        versions: the required packages; None for a missing one.
        extras: the optional ones, of `EXTRAS`.
        remarks: what is missing, but not needed for training.
    """

    host: HostReport
    devices: DevicesReport | None
    device_error: str
    versions: dict[str, str | None]
    extras: dict[str, str | None]
    remarks: tuple[str, ...]

    @property
    def missing(self) -> list[str]:
        """What training needs and this machine lacks."""
        missing = [f"pip install {name}" for name, found in self.versions.items() if found is None]
        if self.devices is None:
            missing.append(f"a device that JAX can use: {self.device_error}")
        if not self.host.cache_writable:
            missing.append(f"a writable {self.host.cache_folder} (or set XDG_CACHE_HOME)")
        if self.host.cache_free_bytes < _MIN_CACHE_BYTES:
            missing.append(f"free space in {self.host.cache_folder}: less than 1 GB")
        return missing

    def facts(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        found = {"error": self.device_error} if self.devices is None else asdict(self.devices)
        return {
            "machine": asdict(self.host) | {"cache_folder": str(self.host.cache_folder)},
            "devices": found,
            "versions": self.versions,
            "extras": self.extras,
            "remarks": list(self.remarks),
            "missing": self.missing,
        }


def examine_machine() -> MachineReport:
    """Examines this machine; measures the rates of a CPU, unless they are cached."""
    devices, device_error = _devices()
    return MachineReport(
        host=_host(),
        devices=devices,
        device_error=device_error,
        versions={name: _version(name) for name in _PACKAGES},
        extras={name: _version(name) for name in EXTRAS},
        remarks=_remarks(),
    )


def _host() -> HostReport:
    cache = user_cache_folder()
    existing = next(folder for folder in (cache, *cache.parents) if folder.exists())
    return HostReport(
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        cores=cpu_cores(),
        memory_bytes=host_memory_bytes(),
        cache_folder=cache,
        cache_free_bytes=shutil.disk_usage(existing).free,
        cache_writable=os.access(existing, os.W_OK),
    )


def _devices() -> tuple[DevicesReport | None, str]:
    """Returns the devices, or why JAX cannot use any."""
    import jax

    try:
        first = jax.devices()[0]
    except (RuntimeError, AssertionError) as error:
        return None, explain_backend_failure(error)
    chip = measured_cpu() if first.platform == "cpu" else chip_for_device(first.device_kind)
    found = DevicesReport(
        platform=first.platform,
        kind=first.device_kind,
        count=jax.device_count(),
        peak_flops=dict(chip.peak_flops) if chip is not None else None,
    )
    return found, ""


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _remarks() -> tuple[str, ...]:
    if shutil.which("make") is None:
        return ("there is no `make`; only developers of Dovetail need it",)
    return ()
