"""`dovetail train --supervise`: the options of the supervisor."""

from __future__ import annotations

import argparse
import sys

from dovetail.cli.output import naming_options
from dovetail.config import ConfigError


def add_supervisor_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    group = parser.add_argument_group("supervisor")
    group.add_argument(
        "--supervise",
        action="store_true",
        help="train in worker processes, and restart them if they crash or hang",
    )
    group.add_argument(
        "--processes", type=int, metavar="N", default=1, help="workers on this host (default 1)"
    )
    group.add_argument(
        "--restarts",
        type=int,
        metavar="N",
        default=10,
        help="give up after so many restarts for one cause (default 10)",
    )
    group.add_argument(
        "--hang-seconds",
        type=float,
        metavar="S",
        default=300.0,
        help="a step without progress for so long is a hang (default 300)",
    )
    group.add_argument(
        "--limit",
        action="append",
        metavar="PHASE=S",
        help="the same for a phase: start (imports, data; 600), compile, restore, save, evaluate",
    )
    group.add_argument(
        "--min-processes",
        type=int,
        metavar="N",
        help="when restarts do not help, go on with fewer workers, at least N (default: never)",
    )
    group.add_argument(
        "--spares",
        type=int,
        metavar="N",
        default=0,
        help="keep N processes ready that replace dead workers sooner (default 0)",
    )
    group.add_argument(
        "--alert",
        metavar="COMMAND|URL",
        help="tell a command (as its last argument) or a URL (POST of JSON) about restarts",
    )
    defaults = {name: parser.get_default(name) for name in _NEED_SUPERVISE}
    parser.set_defaults(supervisor_defaults=defaults)


_NEED_SUPERVISE = (
    *("processes", "restarts", "hang_seconds", "limit", "min_processes", "spares", "alert"),
)
"""The options that mean nothing without `--supervise`."""


def check_supervised(arguments: argparse.Namespace) -> None:
    """Raises a ConfigError for an option of the supervisor without one."""
    for name, default in arguments.supervisor_defaults.items():
        if not arguments.supervise and getattr(arguments, name) != default:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option}: it needs --supervise. Add that, or leave it out.")


_OPTIONS = {
    "processes": "--processes",
    "restarts_per_cause": "--restarts",
    "step": "--hang-seconds",
    "phases": "--limit",
    "min_processes": "--min-processes",
    "spares": "--spares",
}
"""The option of each setting."""


def supervise(arguments: argparse.Namespace) -> int:
    """Runs the same command in workers, which know that they are workers; imports no JAX."""
    from dovetail.runtime.supervisor import Limits, Supervisor, SupervisorSettings

    phases = dict(_phase_and_seconds(text) for text in arguments.limit or [])
    with naming_options(_OPTIONS):
        settings = SupervisorSettings(
            processes=arguments.processes,
            restarts_per_cause=arguments.restarts,
            limits=Limits.of(arguments.hang_seconds, phases),
            min_processes=arguments.min_processes,
            spares=arguments.spares,
            alert=arguments.alert,
        )
    return Supervisor([sys.executable, "-m", "dovetail", *arguments.argv], settings).run()


def _phase_and_seconds(text: str) -> tuple[str, float]:
    """Parses the PHASE=S of `--limit`."""
    phase, equals, seconds = text.partition("=")
    if not equals:
        raise ConfigError(f"--limit {text}: expected PHASE=S, such as start=1200.")
    try:
        return phase, float(seconds)
    except ValueError as error:
        problem = f"--limit {text}: expected 1 or more seconds, got {seconds!r}."
        raise ConfigError(problem) from error
