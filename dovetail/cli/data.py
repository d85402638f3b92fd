"""Prepare data.

  dovetail data prepare tiny-lm

Reads the corpus of an experiment, trains its tokenizer and writes the token store, once. Training
does this automatically if needed.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from dovetail.cli.experiment import add_experiment_arguments, load_experiment
from dovetail.cli.output import print_json
from dovetail.utils import format_bytes, format_count, format_table, plural


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    prepare = actions.add_parser("prepare", help="tokenize the corpus of an experiment")
    add_experiment_arguments(prepare)
    prepare.add_argument("--json", action="store_true", help="print JSON")
    prepare.set_defaults(handler=_prepare)


def _prepare(arguments: argparse.Namespace) -> int:
    from dovetail.data import prepare

    prepared = prepare(load_experiment(arguments).config.input, progress=not arguments.json)
    if arguments.json:
        print_json(asdict(prepared))
        return 0
    rows = [
        (
            name,
            plural(split.documents, "document"),
            format_bytes(split.bytes),
            f"{format_count(split.tokens)} tokens",
        )
        for name, split in prepared.splits.items()
    ]
    print(format_table(rows, align="<>>>"))
    print(f"{prepared.vocabulary} tokens in the vocabulary; in {prepared.folder}")
    return 0
