"""Prepare data.

  dovetail data prepare tiny-lm

Reads the corpus of an experiment, trains its tokenizer and writes the token store, once. Training
does the same by itself when it is needed.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from dovetail.cli.experiment import add_experiment_arguments, choose
from dovetail.cli.output import count, print_json, size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    prepare = actions.add_parser("prepare", help="tokenize the corpus of an experiment")
    add_experiment_arguments(prepare)
    prepare.add_argument("--json", action="store_true", help="print JSON")
    prepare.set_defaults(handler=_prepare)


def _prepare(arguments: argparse.Namespace) -> int:
    prepared = choose(arguments).config.input.build().prepare()
    if arguments.json:
        print_json(asdict(prepared))
        return 0
    for name, split in prepared.splits.items():
        print(
            f"{name:<9} {split.documents:>6,} documents  "
            f"{size(split.bytes):>8}  {count(split.tokens):>6} tokens"
        )
    print(f"{prepared.vocabulary} tokens in the vocabulary; in {prepared.folder}")
    return 0
