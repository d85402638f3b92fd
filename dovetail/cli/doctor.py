"""Check this machine and report what is missing."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
from importlib import metadata
from typing import Any

from dovetail.cli.main import backend_failure
from dovetail.cli.output import print_json
from dovetail.utils import Progress, format_bytes, plural

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
_EXTRAS = {"libtpu": "tpu", "jax-cuda13-plugin": "cuda"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the findings; the exit code is 1 if something that training needs is missing."""
    with Progress("measuring this machine", enabled=not arguments.json):
        facts = {
            "machine": _machine(),
            "devices": _devices(),
            "versions": {name: _version(name) for name in _PACKAGES},
            "extras": {name: _version(name) for name in _EXTRAS},
            "remarks": _remarks(),
        }
    facts["missing"] = _missing(facts)
    if arguments.json:
        print_json(facts)
    else:
        _print(facts)
    return 1 if facts["missing"] else 0


def _machine() -> dict[str, Any]:
    from dovetail.utils import host_memory_bytes, user_cache_folder

    cache = user_cache_folder()
    existing = next(folder for folder in (cache, *cache.parents) if folder.exists())
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_bytes": host_memory_bytes(),
        "cache_folder": str(cache),
        "cache_free_bytes": shutil.disk_usage(existing).free,
        "cache_writable": os.access(existing, os.W_OK),
    }


def _devices() -> dict[str, Any]:
    import jax

    from dovetail.hardware import chip_for_device
    from dovetail.runtime import measured_cpu

    try:
        first = jax.devices()[0]
    except (RuntimeError, AssertionError) as error:
        return {"error": backend_failure(error)}
    chip = measured_cpu() if first.platform == "cpu" else chip_for_device(first.device_kind)
    return {
        "platform": first.platform,
        "kind": first.device_kind,
        "count": jax.device_count(),
        "peak_flops": dict(chip.peak_flops) if chip is not None else None,
    }


def _missing(facts: dict[str, Any]) -> list[str]:
    missing = [
        f"pip install {name}" for name, version in facts["versions"].items() if version is None
    ]
    if "error" in facts["devices"]:
        missing.append(f"a device that JAX can use: {facts['devices']['error']}")
    if not facts["machine"]["cache_writable"]:
        missing.append(f"a writable {facts['machine']['cache_folder']} (or set XDG_CACHE_HOME)")
    if facts["machine"]["cache_free_bytes"] < 1e9:
        missing.append(f"free space in {facts['machine']['cache_folder']}: less than 1 GB")
    return missing


def _remarks() -> list[str]:
    """Returns remarks on what training does not need."""
    if shutil.which("make") is None:
        return ["there is no `make`; only developers of Dovetail need it"]
    return []


def _print(facts: dict[str, Any]) -> None:
    machine, devices = facts["machine"], facts["devices"]
    cores, memory = plural(machine["cores"], "core"), format_bytes(machine["memory_bytes"])
    print(f"machine   {machine['system']}, {cores}, {memory}")
    print(f"python    {machine['python']}")
    if "error" not in devices:
        print(f"devices   {devices['count']} x {devices['kind']} ({devices['platform']})")
    for precision, rate in (devices.get("peak_flops") or {}).items():
        print(f"          {rate / 1e12:.3g} TFLOP/s in {precision}")
    print(f"cache     {machine['cache_folder']}, {format_bytes(machine['cache_free_bytes'])} free")
    for name, version in facts["versions"].items():
        print(f"{name:<18}{version or 'missing'}")
    for name, version in facts["extras"].items():
        print(f"{name:<18}{version or f'not installed (extra: {_EXTRAS[name]})'}")
    for remark in facts["remarks"]:
        print(f"remark    {remark}")
    for need in facts["missing"]:
        print(f"missing   {need}")
    if not facts["missing"]:
        print("everything that training needs is installed")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
