"""Measure how far a feature is spread over a code base.

dovetail modularity scan PATH --feature rope
dovetail modularity scan PATH --feature rope --feature moe --json
dovetail modularity scan PATH --feature dropout --words dropout,drop_rate --history
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dovetail.cli.output import print_json, say
from dovetail.config import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
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


def _complete_features(**_: object) -> list[str]:
    from dovetail.modularity.scan import built_in

    return list(built_in())
