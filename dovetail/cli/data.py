"""Prepare data, look into it, and look after what is prepared.

  dovetail data prepare tiny-lm
  dovetail data inspect tiny-lm
  dovetail data list
  dovetail data prune --unused 30

Preparing reads the corpus of an experiment, trains its tokenizer and writes the token store, once.
Training does this automatically if needed.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from dovetail.cli import data_inspect
from dovetail.cli.experiment import add_experiment_arguments, load_experiment
from dovetail.cli.output import check_number, print_json
from dovetail.utils import Progress, format_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    prepare = actions.add_parser("prepare", help="tokenize the corpus of an experiment")
    add_experiment_arguments(prepare)
    prepare.set_defaults(handler=_prepare)
    inspect = actions.add_parser(
        "inspect",
        help="decoded rows, documents, packing and shares",
        description=data_inspect.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    data_inspect.add_arguments(inspect)
    listing = actions.add_parser("list", help="what is prepared, and when it was last used")
    listing.set_defaults(handler=_list)
    verify = actions.add_parser("verify", help="compare all that is prepared with its checksums")
    verify.set_defaults(handler=_verify)
    prune = actions.add_parser("prune", help="remove what has not been used for long")
    prune.add_argument(
        "--unused", type=float, default=30.0, metavar="DAYS", help="not for so many days (30)"
    )
    prune.add_argument("--dry-run", action="store_true", help="only show it")
    prune.set_defaults(handler=_prune)
    for each in (prepare, inspect, listing, verify, prune):
        each.add_argument("--json", action="store_true", help="print JSON")


def _prepare(arguments: argparse.Namespace) -> int:
    from dovetail.data import prepare

    prepared = prepare(load_experiment(arguments).config.input, progress=not arguments.json)
    if arguments.json:
        print_json(asdict(prepared))
    else:
        print(prepared.text())
    return 0


def _list(arguments: argparse.Namespace) -> int:
    from dovetail.data import list_stores, stores_report

    entries = list_stores()
    if arguments.json:
        print_json([entry.facts() for entry in entries])
    elif entries:
        print(stores_report(entries))
    else:
        print("nothing is prepared")
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from dovetail.data import verify_stores

    with Progress("verifying", enabled=not arguments.json):
        found = verify_stores()
    if arguments.json:
        print_json({str(folder): problem for folder, problem in found.items()})
    else:
        for folder, problem in found.items():
            print(f"{folder.name}: {'intact' if problem is None else problem}")
    return 1 if any(found.values()) else 0


def _prune(arguments: argparse.Namespace) -> int:
    from dovetail.data import prune_stores

    check_number("--unused", arguments.unused, 0, 10**6)
    removed = prune_stores(arguments.unused, arguments.dry_run)
    if arguments.json:
        print_json([entry.facts() for entry in removed])
        return 0
    for entry in removed:
        print(entry.folder.name)
    verb = "would free" if arguments.dry_run else "freed"
    print(f"{verb} {format_bytes(sum(entry.bytes for entry in removed))}")
    return 0
