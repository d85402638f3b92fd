"""Show, compare and list experiments.

dovetail config list
dovetail config list llama
dovetail config show tiny-lm --why
dovetail config show tiny-lm learner.schedule
dovetail config diff tiny-lm small-lm
dovetail config diff tiny-lm --with moe
dovetail config params tiny-lm
dovetail config targets
dovetail config sharding llama2-7b --target tpu-v5p-512
"""

from __future__ import annotations

import argparse
from typing import Any

from dovetail.cli.config_list import add_list
from dovetail.cli.config_sharding import add_sharding
from dovetail.cli.config_targets import add_targets
from dovetail.cli.experiment import (
    add_change_arguments,
    add_experiment_arguments,
    complete_experiments,
    load_experiment,
)
from dovetail.cli.output import print_json, say
from dovetail.config import (
    Config,
    ConfigError,
    all_values,
    derived_paths,
    diff,
    explain,
    json_origins,
    json_values,
    to_text,
    value_at,
)
from dovetail.experiments import ConfigKeys
from dovetail.utils import format_count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="the config of an experiment, or a part of it")
    add_experiment_arguments(show, words="key.path | key.path=value")
    show.add_argument("--why", action="store_true", help="say which line of code set each value")
    show.add_argument(
        "--text",
        action="store_true",
        help="only what differs from defaults, as in a run's config.txt",
    )
    show.set_defaults(handler=_show)
    _add_diff(actions)
    add_list(actions)
    params = actions.add_parser("params", help="parameter counts; allocates nothing")
    add_experiment_arguments(params)
    params.set_defaults(handler=_params)
    add_targets(actions)
    add_sharding(actions)
    for action in actions.choices.values():
        action.add_argument("--json", action="store_true", help="print JSON")


def _add_diff(actions: Any) -> None:
    about = (
        "Of two experiments: what differs between them; --with, --target, key.path=value, --seed "
        "and --steps change both. Of one: what those change in it."
    )
    compare = actions.add_parser(
        "diff",
        help="what differs between two experiments, or what a change does",
        description=about,
    )
    argument: Any = compare.add_argument("experiment", metavar="EXPERIMENT")
    argument.completer = complete_experiments
    # Named `overrides` as in other verbs, so that the words may come before or after options.
    argument = compare.add_argument(
        "overrides",
        nargs="*",
        metavar="EXPERIMENT|key.path=value",
        help="the other experiment, and values to set",
    )
    argument.completer = complete_experiments
    add_change_arguments(compare)
    compare.set_defaults(handler=_diff)


def _show(arguments: argparse.Namespace) -> int:
    parts = [word for word in arguments.overrides if "=" not in word]
    arguments.overrides = [word for word in arguments.overrides if "=" in word]
    if parts and arguments.text:
        raise ConfigError("--text writes the config as one text: leave out the paths.")
    config = load_experiment(arguments).config
    ConfigKeys.of(config).check([f"{path}=" for path in parts])
    for path in parts:
        value_at(config, path)  # an unknown item of a list or dict raises
    if arguments.json:
        values = json_origins(config) if arguments.why else json_values(config)
        print_json({path: value for path, value in values.items() if _is_inside(path, parts)})
        return 0
    if arguments.text:
        print(to_text(config), end="")
        return 0
    derived = derived_paths(config)
    origins = {line.path: line.origin for line in explain(config)} if arguments.why else {}
    for path, value in all_values(config).items():
        if _is_inside(path, parts):
            value = "(derived)" if path in derived else value
            end = f"  # {origins[path]}" if arguments.why and path not in derived else ""
            print(f"{path or '(root)'} = {value}{end}" if path or end else value)
    return 0


def _is_inside(path: str, parts: list[str]) -> bool:
    return not parts or any(path == part or path.startswith(f"{part}.") for part in parts)


def _diff(arguments: argparse.Namespace) -> int:
    differences = diff(*_compared_configs(arguments))
    if arguments.json:
        print_json([vars(difference) for difference in differences])
    else:
        shown = [difference for difference in differences if not difference.by_default]
        for difference in shown:
            print(difference)
        if not differences:
            say("no difference")
        elif left_out := len(differences) - len(shown):
            say(f"left out: {left_out} defaults of components that one side lacks; --json has them")
    return 0


def _compared_configs(arguments: argparse.Namespace) -> tuple[Config[Any], Config[Any]]:
    """Returns two experiments with the same changes, or one without and with the changes."""
    others = [word for word in arguments.overrides if "=" not in word]
    arguments.overrides = [word for word in arguments.overrides if "=" in word]
    chosen = load_experiment(arguments)
    if len(others) > 1:
        named = ", ".join([chosen.name, *others])
        raise ConfigError(f"config diff: expected one or two experiments, got {named}.")
    if others:
        return chosen.config, load_experiment(arguments, others[0]).config
    options = (arguments.data, arguments.modifiers, arguments.overrides, arguments.target)
    if not any(options) and arguments.seed is None and arguments.steps is None:
        raise ConfigError(
            f"config diff: there is nothing to compare {chosen.name} with. Name a second "
            "experiment, or a change: --data PATH, --with NAME, --target MACHINE, key.path=value, "
            "--seed or --steps."
        )
    return chosen.resolved.base, chosen.config


def _params(arguments: argparse.Namespace) -> int:
    model = load_experiment(arguments).config.build().model
    from dovetail.module import count_parameters

    counts = count_parameters(model)
    if arguments.json:
        print_json(vars(counts))
        return 0
    if counts.active != counts.total:
        print(f"{format_count(counts.active):>8}  active for each token, of:")
    for path, number in counts.by_module.items():
        depth = path.count("/") + 1 if path else 0
        print(f"{format_count(number):>8}  {'  ' * depth}{path.rpartition('/')[2] or 'total'}")
    return 0
