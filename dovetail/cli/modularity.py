"""Measure what a feature costs: try every one with every experiment, and take each away.

dovetail modularity
dovetail modularity --feature rope --feature moe --experiment tiny-lm

Or measure how far a feature is spread over any code base:

dovetail modularity scan PATH --feature rope
dovetail modularity scan PATH --feature rope --feature moe --json
dovetail modularity scan PATH --feature dropout --words dropout,drop_rate --history
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dovetail.cli.output import check_folder, print_json, say
from dovetail.cli.tally import tally
from dovetail.config import ConfigError, did_you_mean


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    parser.add_argument("--experiment", action="append", default=[], help="one of those to try")
    feature: Any = parser.add_argument(
        "--feature", dest="wanted", action="append", default=[], help="one of those to try"
    )
    feature.completer = _complete_own_features
    parser.add_argument("--jobs", type=int, default=2, help="in how many processes (2)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument(
        "--write",
        type=Path,
        metavar="FOLDER",
        help="also measure growth; write all of it, and the plot",
    )
    parser.set_defaults(handler=_survey)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    _add_scan(actions.add_parser("scan", help="any Python code base, by parsing it"))


def _add_scan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, metavar="PATH", help="the folder of the code base")
    feature: Any = parser.add_argument(
        "--feature", action="append", required=True, help="the feature to look for; may be repeated"
    )
    feature.completer = _complete_features
    parser.add_argument(
        "--words", metavar="WORD,WORD", help="the words that name the feature, if not the built-in"
    )
    parser.add_argument("--models", metavar="PATTERN", help="which files are models': */nets/*.py")
    parser.add_argument("--tests", action="store_true", help="count tests, too")
    parser.add_argument("--history", action="store_true", help="read git's log, too")
    parser.add_argument("--show", type=int, default=3, metavar="N", help="places to show of a kind")
    parser.add_argument("--json", action="store_true", help="print JSON, with every place")
    parser.set_defaults(handler=_scan)


def _survey(arguments: argparse.Namespace) -> int:
    from dovetail.cli.experiment import load_all_parts
    from dovetail.experiments import find_experiment
    from dovetail.features import features
    from dovetail.modularity.report import report
    from dovetail.modularity.survey import survey
    from dovetail.modularity.written import write_all

    load_all_parts()
    for name in arguments.experiment:
        find_experiment(name)
    for name in arguments.wanted:
        if name not in features():
            raise ConfigError(f"There is no feature {name!r}. {did_you_mean(name, features())}")
    if arguments.jobs < 1:
        raise ConfigError(f"--jobs: expected 1 or more, got {arguments.jobs}.")
    if arguments.write is not None:
        check_folder("--write", arguments.write)
    with tally("modularity") as tell:
        found = survey(arguments.experiment, arguments.wanted, jobs=arguments.jobs, tell=tell)
        if arguments.write is not None:
            write_all(found, arguments.write, jobs=arguments.jobs, tell=tell)
    if arguments.write is not None:
        say(f"wrote {arguments.write}/modularity-measured.md, .svg and .json")
    if arguments.json:
        print_json(found.counts())
    else:
        print(report(found))
    return 1 if found.matrix.failing or found.lines_changed else 0


def _scan(arguments: argparse.Namespace) -> int:
    from dovetail.modularity.scan import as_text, read_history, scan, vocabulary

    words = [word for word in (arguments.words or "").split(",") if word]
    if words and len(arguments.feature) > 1:
        raise ConfigError(
            f"--words is for one --feature, and there are {len(arguments.feature)}; "
            "scan each on its own"
        )
    features = [vocabulary(name, words) for name in dict.fromkeys(arguments.feature)]
    options = {"tests": arguments.tests, "progress": say}
    report = scan(arguments.path, features, models=arguments.models, **options)
    histories = {}
    if arguments.history:
        histories = {f.name: read_history(arguments.path, f, **options) for f in features}
    if arguments.json:
        found = report.as_json()
        for name, history in histories.items():
            found["features"][name]["history"] = history.as_json()
        print_json(found)
    else:
        print(as_text(report, histories, arguments.show))
    return 0


def _complete_own_features(**_: object) -> list[str]:
    from dovetail.features import features

    return list(features())


def _complete_features(**_: object) -> list[str]:
    from dovetail.modularity.scan import built_in

    return list(built_in())
