"""`config sharding`: the sharding of parameters, optimizer state and activations."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dovetail.cli.experiment import add_experiment_arguments, choose
from dovetail.cli.output import check_file, print_json, say
from dovetail.config import ConfigError
from dovetail.targets import default_to_cpu, experiment_sharding, machine_program
from dovetail.utils import Progress


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
        sharding = experiment_sharding(program, chosen.machine, chosen.name)
    if arguments.html is not None:
        arguments.html.write_text(sharding.page(), encoding="utf-8")
        say(f"wrote {arguments.html}")
    if arguments.json:
        print_json(sharding.facts())
    elif arguments.html is None:
        for report in chosen.reports:
            say(report)
        print(sharding.report())
    return 0
