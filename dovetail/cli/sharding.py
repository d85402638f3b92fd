"""`config sharding`: how each parameter, its state and the activations lie on a machine."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.cli.experiment import add_experiment_arguments, choose
from dovetail.cli.output import check_file, count, print_json, say, size
from dovetail.config import ConfigError
from dovetail.targets import Laid, Layout, lay_out, need_no_accelerator

_GROUPS = ("parameters", "optimizer", "averages", "variables", "batch", "activations")


def add_sharding(actions: Any) -> None:
    """Declares the action."""
    sharding = actions.add_parser(
        "sharding", help="how every array lies on a machine, with no device needed"
    )
    add_experiment_arguments(sharding)
    sharding.add_argument("--html", type=Path, metavar="FILE", help="draw it as a page")
    sharding.set_defaults(handler=_sharding)


def _sharding(arguments: argparse.Namespace) -> int:
    need_no_accelerator()
    chosen = choose(arguments)
    if chosen.machine is None:
        raise ConfigError(
            "config sharding: on which machine? Pass --target, such as --target tpu-v5p-512 or "
            "--target cpu-8; `dovetail config targets` lists them."
        )
    if arguments.html is not None:
        check_file("--html", arguments.html)
    layout = lay_out(chosen.config, chosen.machine)
    if arguments.html is not None:
        from dovetail.cli.sharding_page import sharding_page

        arguments.html.write_text(sharding_page(chosen.name, layout), encoding="utf-8")
        say(f"wrote {arguments.html}")
    if arguments.json:
        print_json(_facts(chosen.name, layout))
    elif arguments.html is None:
        for report in chosen.reports:
            say(report)
        _print(chosen.name, layout)
    return 0


def verdict(layout: Layout) -> str:
    """Says in one sentence what the state takes of a device's memory."""
    total, there = sum(layout.totals().values()), layout.machine.memory_per_device
    share = f"{size(total)} of {size(there)} on each device ({total / there:.1%})"
    if total > there:
        return f"does not fit: {share}, before gradients and activations"
    return f"{share}; gradients and activations come on top"


def warning(layout: Layout) -> str | None:
    """Says what every device holds whole, if anything."""
    whole = layout.replicated()
    if not whole:
        return None
    total, largest = sum(laid.bytes_per_device for laid in whole), whole[0]
    return (
        f"warning: {size(total)} are replicated on every device, in {len(whole)} "
        f"array{'s' if len(whole) > 1 else ''} of the state; the largest is {largest.path} "
        f"({size(largest.bytes_per_device)})"
    )


def logical(laid: Laid) -> str:
    """Writes the shape with its logical axes: `layers:32 embed:4096`."""
    pairs = zip(laid.axes, laid.shape, strict=True)
    return " ".join(f"{axis or '-'}:{length}" for axis, length in pairs) or "scalar"


def physical(laid: Laid) -> str:
    """Writes which logical axes are split over which mesh axes."""
    pairs = zip(laid.axes, laid.split, strict=True)
    return ", ".join(f"{axis} over {' x '.join(names)}" for axis, names in pairs if names) or (
        "replicated" if laid.devices > 1 else "whole"
    )


def taken(arrays: Sequence[Laid]) -> str:
    """Writes what arrays that lie in one memory take of it."""
    total = size(sum(laid.bytes_per_device for laid in arrays))
    on_device = arrays[0].memory is None
    return f"{total} a device" if on_device else f"{total} on the host for each device"


def _print(name: str, layout: Layout) -> None:
    mesh = " x ".join(f"{axis} {length}" for axis, length in layout.mesh.items()) or "one device"
    print(f"{name} on {layout.machine.name} ({layout.machine}): mesh {mesh}")
    beside = _beside(layout)
    shown = {id(state) for states in beside.values() for state in states}
    for group in _GROUPS:
        arrays = [laid for laid in layout.group(group) if id(laid) not in shown]
        if arrays:
            total = layout.totals().get(group)
            print(f"\n{group}" + (f", {size(total)} a device" if total is not None else ""))
        for laid in arrays:
            _print_array(laid, beside.get(laid.path, []) if group == "parameters" else [])
    print()
    for group, total in layout.totals().items():
        print(f"{group:<12} {size(total):>9}")
    print(f"{'in all':<12} {verdict(layout)}")
    if elsewhere := layout.elsewhere():
        print(f"{'on the host':<12} {size(elsewhere):>9} for each device")
    if (text := warning(layout)) is not None:
        print(text)


def _beside(layout: Layout) -> dict[str, list[Laid]]:
    """Returns the optimizer's arrays that lie as their parameter does, by its path."""
    parameters = {laid.path: laid for laid in layout.group("parameters")}
    found: dict[str, list[Laid]] = {}
    for state in layout.group("optimizer"):
        owner = parameters.get(state.owner)
        if owner is not None and (owner.axes, owner.shape) == (state.axes, state.shape):
            found.setdefault(owner.path, []).append(state)
    return found


def _print_array(laid: Laid, states: list[Laid]) -> None:
    print(f"  {laid.path or '(model)'}  {logical(laid)}  {laid.dtype}")
    local = "x".join(map(str, laid.local_shape)) or "scalar"
    # What every device has is called replicated already.
    copies = f", {laid.copies} copies" if 1 < laid.copies < laid.devices else ""
    print(f"      {physical(laid)}: {local}, {taken([laid])}{copies}")
    if states:
        names = ", ".join(state.path.removesuffix(f"/{laid.path}") for state in states)
        print(f"      optimizer: {names} lie alike, {taken(states)}")


def _facts(name: str, layout: Layout) -> dict[str, Any]:
    replicated = layout.replicated()
    parameters = sum(math.prod(laid.shape) for laid in layout.group("parameters"))
    return {
        "experiment": name,
        "target": layout.machine.name,
        "devices": layout.machine.devices,
        "mesh": layout.mesh,
        "parameters": {"total": parameters, "in_words": count(parameters)},
        "memory_bytes_per_device": layout.machine.memory_per_device,
        "bytes_per_device": layout.totals(),
        "host_bytes_per_device": layout.elsewhere(),
        "replicated_bytes": sum(laid.bytes_per_device for laid in replicated),
        "replicated": [f"{laid.group}: {laid.path}" for laid in replicated],
        "arrays": [
            {**vars(laid), "bytes_per_device": laid.bytes_per_device} for laid in layout.arrays
        ],
    }
