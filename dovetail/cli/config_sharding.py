"""`config sharding`: the sharding of parameters, optimizer state and activations."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.cli.experiment import add_experiment_arguments, choose
from dovetail.cli.output import check_file, print_json, say
from dovetail.config import ConfigError
from dovetail.targets import (
    ArraySharding,
    ExperimentSharding,
    default_to_cpu,
    experiment_sharding,
    machine_program,
)
from dovetail.utils import Progress, format_bytes, format_table

_GROUPS = ("parameters", "optimizer", "averages", "variables", "batch", "activations")


def add_sharding(actions: Any) -> None:
    """Declares the action."""
    sharding = actions.add_parser(
        "sharding", help="the sharding of every array on a machine; needs no device"
    )
    add_experiment_arguments(sharding)
    sharding.add_argument("--html", type=Path, metavar="FILE", help="write an HTML page")
    sharding.set_defaults(handler=_sharding)


def _sharding(arguments: argparse.Namespace) -> int:
    if arguments.target is None:
        raise ConfigError(
            "config sharding: on which machine? Pass --target, such as --target tpu-v5p-512 or "
            "--target cpu-8; `dovetail config targets` lists them."
        )
    if arguments.html is not None:
        check_file("--html", arguments.html)
    default_to_cpu()
    with Progress(arguments.experiment, enabled=not arguments.json) as progress:
        progress.stage("loading")
        chosen = choose(arguments)
        progress.stage("tracing the step")
        assert chosen.machine is not None
        program = machine_program(chosen.config.build(), chosen.machine)
        layout = experiment_sharding(program, chosen.machine)
    if arguments.html is not None:
        from dovetail.cli.config_sharding_page import sharding_page

        arguments.html.write_text(sharding_page(chosen.name, layout), encoding="utf-8")
        say(f"wrote {arguments.html}")
    if arguments.json:
        print_json({"experiment": chosen.name, **layout.facts()})
    elif arguments.html is None:
        for report in chosen.reports:
            say(report)
        _print(chosen.name, layout)
    return 0


def logical(array: ArraySharding) -> str:
    """Formats the shape with its logical axes: `layers:32 embed:4096`."""
    pairs = zip(array.axes, array.shape, strict=True)
    return " ".join(f"{axis or '-'}:{length}" for axis, length in pairs) or "scalar"


def physical(array: ArraySharding) -> str:
    """Formats which logical axes are sharded over which mesh axes."""
    pairs = zip(array.axes, array.mesh_axes, strict=True)
    return ", ".join(f"{axis} over {' x '.join(names)}" for axis, names in pairs if names) or (
        "replicated" if array.devices > 1 else "unsharded"
    )


def taken(arrays: Sequence[ArraySharding]) -> str:
    """Formats the bytes of arrays in one memory space."""
    total = format_bytes(sum(array.bytes_per_device for array in arrays))
    on_device = arrays[0].memory is None
    return f"{total} per device" if on_device else f"{total} on the host for each device"


def _print(name: str, layout: ExperimentSharding) -> None:
    mesh = " x ".join(f"{axis} {length}" for axis, length in layout.mesh.items()) or "one device"
    print(f"{name} on {layout.machine.name} ({layout.machine}): mesh {mesh}")
    states_by_path = layout.states_like_parameters()
    shown = {id(state) for states in states_by_path.values() for state in states}
    for group in _GROUPS:
        arrays = [array for array in layout.group(group) if id(array) not in shown]
        if arrays:
            total = layout.totals().get(group)
            print(
                f"\n{group}" + (f", {format_bytes(total)} per device" if total is not None else "")
            )
        for array in arrays:
            states = states_by_path.get(array.path, []) if group == "parameters" else []
            _print_array(array, states)
    print()
    rows = [(group, format_bytes(total)) for group, total in layout.totals().items()]
    rows.append(("in all", layout.verdict()))
    if elsewhere := layout.host_bytes():
        rows.append(("on the host", f"{format_bytes(elsewhere)} for each device"))
    print(format_table(rows))
    if (text := layout.warning()) is not None:
        print(text)


def _print_array(array: ArraySharding, states: list[ArraySharding]) -> None:
    print(f"  {array.path or '(model)'}  {logical(array)}  {array.dtype}")
    local = "x".join(map(str, array.local_shape)) or "scalar"
    # "replicated" already says that every device has a copy.
    copies = f", {array.copies} copies" if 1 < array.copies < array.devices else ""
    print(f"      {physical(array)}: {local}, {taken([array])}{copies}")
    if states:
        names = ", ".join(state.path.removesuffix(f"/{array.path}") for state in states)
        print(f"      optimizer: {names} sharded like it, {taken(states)}")
