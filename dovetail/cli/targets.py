"""`config targets`: the machines that an experiment can be fitted to, with figures and prices."""

from __future__ import annotations

import argparse
from typing import Any

from dovetail.cli.experiment import import_packages
from dovetail.cli.output import print_json, size
from dovetail.targets import FAMILIES, Family, parse_target, target_rules

_CPU = {"cpu": "this machine", "cpu-N": "this machine, as N virtual devices"}


def add_targets(actions: Any) -> None:
    """Declares the action."""
    targets = actions.add_parser("targets", help="all machines, with figures and list prices")
    targets.add_argument("--import", dest="imports", action="append", default=[], metavar="PACKAGE")
    targets.set_defaults(handler=_targets)


def target_forms() -> dict[str, str]:
    """Returns the forms of names, each with what its number counts."""
    return {
        **{f"{prefix}-N": f"N counts {family.counts}" for prefix, family in FAMILIES.items()},
        **_CPU,
    }


def _targets(arguments: argparse.Namespace) -> int:
    import_packages(arguments.imports)
    rules = [
        {"name": rule.name, "pattern": rule.pattern, "about": rule.about} for rule in target_rules()
    ]
    families = {prefix: _facts(family) for prefix, family in FAMILIES.items()}
    if arguments.json:
        print_json({"targets": families, "rules": rules})
        return 0
    _print_figures(families)
    _print_prices(families)
    print("\nrules, in the order in which they are asked:")
    for rule in rules:
        print(f"  {rule['name']:<12} {rule['pattern']:<8} {rule['about']}")
    return 0


def _facts(family: Family) -> dict[str, Any]:
    chip, machine = family.chip, parse_target(f"{family.prefix}-{family.example}")
    price = chip.price
    return {
        "counts": family.counts,
        "chip": chip.name,
        "peak_flops": dict(chip.peak_flops),
        "memory_bytes": chip.memory_bytes,
        "memory_bandwidth": chip.memory_bandwidth,
        "interconnect_bandwidth": chip.interconnect_bandwidth,
        "linked_chips": chip.linked_chips,
        "chips_per_host": chip.chips_per_host,
        "devices_per_chip": chip.devices_per_chip,
        "network_bandwidth": chip.network_bandwidth,
        "price": vars(price) if price is not None else None,
        "example": {
            "target": machine.name,
            "chips": machine.chips,
            "devices": machine.devices,
            "hosts": machine.hosts,
            "topology": machine.topology,
            "usd_per_hour": machine.usd_per_hour,
        },
    }


def _print_figures(families: dict[str, dict[str, Any]]) -> None:
    print(
        f"{'target':<16}{'N counts':<26}{'bf16 TFLOP/s':>13}{'memory':>9}{'a second':>10}"
        f"{'links':>9}{'network':>9}  chips a host"
    )
    for prefix, facts in families.items():
        network = facts["network_bandwidth"]
        print(
            f"{prefix + '-N':<16}{facts['counts']:<26}"
            f"{facts['peak_flops']['bfloat16'] / 1e12:>13,.0f}{size(facts['memory_bytes']):>9}"
            f"{size(facts['memory_bandwidth']):>10}{size(facts['interconnect_bandwidth']):>9}"
            f"{size(network) if network is not None else '?':>9}{facts['chips_per_host']:>14}"
        )
    for form, about in _CPU.items():
        print(f"{form:<16}{about}")
    print("\nOf one chip; links and network: bytes a second out of it, in one direction.")


def _print_prices(families: dict[str, dict[str, Any]]) -> None:
    print("\nlist prices, an hour of one chip:")
    for prefix, facts in families.items():
        price = facts["price"]
        if price is None:
            print(f"  {prefix:<14} none found")
            continue
        usd = f"${price['usd_per_chip_hour']:.2f}"
        print(f"  {prefix:<14} {usd:>7}  {price['date']}  {price['offer']}")
        print(f"  {'':<14} {'':>7}  {'':<10}  {price['source']}")
