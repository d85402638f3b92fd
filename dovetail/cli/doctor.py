"""Check this machine and report what is missing."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dovetail.cli.output import print_json
from dovetail.utils import Progress, format_bytes, format_number, plural

if TYPE_CHECKING:
    from dovetail.runtime import MachineReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the findings; the exit code is 1 if something that training needs is missing."""
    with Progress("measuring this machine", enabled=not arguments.json):
        from dovetail.runtime import examine_machine

        report = examine_machine()
    if arguments.json:
        print_json(report.facts())
    else:
        _print(report)
    return 1 if report.missing else 0


def _print(report: MachineReport) -> None:
    from dovetail.runtime.doctor import EXTRAS

    host, devices, missing = report.host, report.devices, report.missing
    print(
        f"machine   {host.system}, {plural(host.cores, 'core')}, {format_bytes(host.memory_bytes)}"
    )
    print(f"python    {host.python}")
    if devices is not None:
        print(f"devices   {devices.count} x {devices.kind} ({devices.platform})")
        for precision, rate in (devices.peak_flops or {}).items():
            print(f"          {format_number(rate / 1e12)} TFLOP/s in {precision}")
    print(f"cache     {host.cache_folder}, {format_bytes(host.cache_free_bytes)} free")
    for name, version in report.versions.items():
        print(f"{name:<18}{version or 'missing'}")
    for name, version in report.extras.items():
        print(f"{name:<18}{version or f'not installed (extra: {EXTRAS[name]})'}")
    for remark in report.remarks:
        print(f"remark    {remark}")
    for need in missing:
        print(f"missing   {need}")
    if not missing:
        print("everything that training needs is installed")
