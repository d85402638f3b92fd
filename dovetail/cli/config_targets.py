"""`config targets`: the machines that an experiment can be fitted to, with rates and prices."""

from __future__ import annotations

import argparse
from typing import Any

from dovetail.cli.output import print_json
from dovetail.config import import_packages
from dovetail.targets import MACHINE_FAMILIES, family_facts, target_rules
from dovetail.utils import format_bytes, format_table

_CPU = {"cpu": "this machine", "cpu-N": "this machine, as N virtual devices"}


def add_targets(actions: Any) -> None:
    """Declares the action."""
    targets = actions.add_parser("targets", help="all machines, with rates and list prices")
    targets.add_argument("--import", dest="imports", action="append", default=[], metavar="PACKAGE")
    targets.set_defaults(handler=_targets)


def target_forms() -> dict[str, str]:
    """Returns the forms of target names, each with what its number counts."""
    return {
        **{
            f"{prefix}-N": f"N counts {family.counts}"
            for prefix, family in MACHINE_FAMILIES.items()
        },
        **_CPU,
    }


def _targets(arguments: argparse.Namespace) -> int:
    import_packages(arguments.imports)
    families, rules = family_facts(), target_rules()
    if arguments.json:
        print_json({"targets": families, "rules": [rule.facts() for rule in rules]})
        return 0
    _print_specs(families)
    _print_prices(families)
    print("\nrules, in order; the first that matches applies:")
    for rule in rules:
        print(f"  {rule.name:<12} {rule.pattern:<8} {rule.about}")
    return 0


def _print_specs(families: dict[str, dict[str, Any]]) -> None:
    header = (
        *("target", "N counts", "bf16 TFLOP/s", "memory", "per second", "links", "network"),
        "chips per host",
    )
    rows = [
        (
            f"{prefix}-N",
            facts["counts"],
            f"{facts['peak_flops']['bfloat16'] / 1e12:,.0f}",
            *(
                format_bytes(facts[name]) if facts[name] is not None else "?"
                for name in (
                    "memory_bytes",
                    "memory_bandwidth",
                    "interconnect_bandwidth",
                    "network_bandwidth",
                )
            ),
            str(facts["chips_per_host"]),
        )
        for prefix, facts in families.items()
    ]
    print(format_table([*rows, *_CPU.items()], header=header, align="<<>>>>>>"))
    print("\nOf one chip; links and network: bytes per second out of it, in one direction.")


def _print_prices(families: dict[str, dict[str, Any]]) -> None:
    print("\nlist prices per chip-hour:")
    rows: list[tuple[str, ...]] = []
    for prefix, facts in families.items():
        price = facts["price"]
        if price is None:
            rows.append((prefix, "none found"))
            continue
        usd = f"${price['usd_per_chip_hour']:.2f}"
        rows += [(prefix, usd, price["date"], price["offer"]), ("", "", "", price["source"])]
    print(format_table(rows, align="<>", indent="  "))
