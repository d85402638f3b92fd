"""Measure the cost of adding a feature: run each with every experiment, then delete it.

dovetail modularity
dovetail modularity --feature rope --feature moe --experiment tiny-lm
dovetail modularity --import mypackage     # the features of a package of your own

Or measure how far a feature is spread over any code base:

dovetail modularity scan PATH --feature rope
dovetail modularity scan PATH --feature rope --feature moe --json
dovetail modularity scan PATH --feature dropout --words dropout,drop_rate --history
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dovetail.cli.experiment import add_import_argument
from dovetail.cli.output import check_folder, naming_options, print_json, say
from dovetail.config import ConfigError
from dovetail.utils import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    parser.add_argument(
        "--experiment", action="append", default=[], help="only this one; may be repeated"
    )
    feature: Any = parser.add_argument(
        "--feature",
        dest="wanted",
        metavar="FEATURE",
        action="append",
        default=[],
        help="only this one; may be repeated",
    )
    feature.completer = _complete_own_features
    add_import_argument(parser)
    parser.add_argument("--jobs", type=int, default=2, help="number of processes (2)")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    parser.add_argument(
        "--write",
        type=Path,
        metavar="FOLDER",
        help="also measure growth; write page, plot and JSON",
    )
    parser.set_defaults(handler=_measure)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    _add_scan(actions.add_parser("scan", help="any Python code base, by parsing it"))


def _add_scan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, metavar="PATH", help="the folder of the code base")
    feature: Any = parser.add_argument(
        "--feature", action="append", required=True, help="the feature to look for; may be repeated"
    )
    feature.completer = _complete_features
    parser.add_argument(
        "--words", metavar="WORD,WORD", help="the words that name the feature; default: built-in"
    )
    parser.add_argument("--models", metavar="PATTERN", help="pattern of model files: */nets/*.py")
    parser.add_argument("--tests", action="store_true", help="count tests, too")
    parser.add_argument("--history", action="store_true", help="read git's log, too")
    parser.add_argument(
        "--show", type=int, default=3, metavar="N", help="matches to show of each kind"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, with every match")
    parser.set_defaults(handler=_scan)


def _measure(arguments: argparse.Namespace) -> int:
    if arguments.write is not None:
        if arguments.imports:
            raise ConfigError("--write describes our own features: leave out --import.")
        check_folder("--write", arguments.write)
    with Progress("modularity", enabled=not arguments.json) as progress:
        progress.stage("loading")
        from dovetail.modularity.meter import measure_modularity
        from dovetail.modularity.report import as_text, write_report

        options: Any = {"jobs": arguments.jobs, "on_progress": progress.report}
        with naming_options({"jobs": "--jobs", "imports": "--import"}):
            measured = measure_modularity(
                arguments.experiment, arguments.wanted, imports=arguments.imports, **options
            )
        if arguments.write is not None:
            write_report(measured, arguments.write, **options)
    if arguments.write is not None:
        say(f"wrote {arguments.write}/modularity-measured.md, .svg and .json")
    if arguments.json:
        print_json(measured.counts())
    else:
        print(as_text(measured))
    return 1 if measured.matrix.failing or measured.lines_changed else 0


def _scan(arguments: argparse.Namespace) -> int:
    from dovetail.modularity.scan import as_text, feature_words, read_history, scan

    words = [word for word in (arguments.words or "").split(",") if word]
    if words and len(arguments.feature) > 1:
        raise ConfigError(
            f"--words is for one --feature, and there are {len(arguments.feature)}; "
            "scan each on its own"
        )
    features = [feature_words(name, words) for name in dict.fromkeys(arguments.feature)]
    options = {"tests": arguments.tests, "progress": say}
    report = scan(arguments.path, features, models=arguments.models, **options)
    histories = {}
    if arguments.history:
        histories = {f.name: read_history(arguments.path, f, **options) for f in features}
    if arguments.json:
        facts = report.as_json()
        for name, history in histories.items():
            facts["features"][name]["history"] = history.as_json()
        print_json(facts)
    else:
        print(as_text(report, histories, arguments.show))
    return 0


def _complete_own_features(**_: object) -> list[str]:
    from dovetail.features import features

    return list(features())


def _complete_features(**_: object) -> list[str]:
    from dovetail.modularity.scan import builtin_words

    return list(builtin_words())
