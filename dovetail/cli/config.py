"""Show, compare and list experiments.

dovetail config list
dovetail config show tiny-lm --why
dovetail config diff tiny-lm small-lm
dovetail config diff tiny-lm --with moe
dovetail config params tiny-lm
dovetail config targets
dovetail config sharding llama2-7b --target tpu-v5p-512
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from typing import Any

from dovetail.cli.experiment import (
    add_change_arguments,
    add_experiment_arguments,
    choose,
    complete_experiments,
    import_packages,
)
from dovetail.cli.output import count, print_json, say
from dovetail.cli.sharding import add_sharding
from dovetail.cli.targets import add_targets, target_forms
from dovetail.config import (
    Config,
    ConfigError,
    all_values,
    diff,
    explain,
    json_values,
    modifiers,
    to_text,
)
from dovetail.experiments import Experiment, experiments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="the whole tree of an experiment")
    add_experiment_arguments(show)
    show.add_argument("--why", action="store_true", help="say which line of code set each value")
    show.add_argument(
        "--text", action="store_true", help="only what differs from defaults, as kept in runs"
    )
    show.set_defaults(handler=_show)
    _add_diff(actions)
    listing = actions.add_parser("list", help="all experiments, modifiers and targets")
    listing.add_argument("--import", dest="imports", action="append", default=[], metavar="PACKAGE")
    listing.set_defaults(handler=_list)
    params = actions.add_parser("params", help="parameter counts, with no array made")
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
    # Named like the words of other verbs, so that they too may stand before or after options.
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
    config = choose(arguments).config
    if arguments.json:
        print_json(_values_with_origins(config) if arguments.why else json_values(config))
    elif arguments.text:
        print(to_text(config), end="")
    elif arguments.why:
        for line in explain(config):
            print(f"{line.path or '(root)'} = {line.value}  # {line.origin}")
    else:
        for path, value in all_values(config).items():
            print(f"{path} = {value}" if path else value)
    return 0


def _values_with_origins(config: Config[Any]) -> dict[str, Any]:
    values = json_values(config)
    return {
        line.path: {"value": values[line.path], "set_by": line.origin} for line in explain(config)
    }


def _diff(arguments: argparse.Namespace) -> int:
    differences = diff(*_two_sides(arguments))
    if arguments.json:
        print_json([vars(difference) for difference in differences])
    else:
        shown = [difference for difference in differences if not difference.by_default]
        for difference in shown:
            print(difference)
        if not differences:
            say("no difference")
        elif left_out := len(differences) - len(shown):
            say(f"left out: {left_out} defaults of parts that one side lacks; --json has them")
    return 0


def _two_sides(arguments: argparse.Namespace) -> tuple[Config[Any], Config[Any]]:
    """Returns two experiments, changed alike; or one, without and with the changes."""
    others = [word for word in arguments.overrides if "=" not in word]
    arguments.overrides = [word for word in arguments.overrides if "=" in word]
    chosen = choose(arguments)
    if len(others) > 1:
        named = ", ".join([chosen.name, *others])
        raise ConfigError(f"config diff: expected one or two experiments, got {named}.")
    if others:
        return chosen.config, choose(arguments, others[0]).config
    options = (arguments.modifiers, arguments.overrides, arguments.target)
    if not any(options) and arguments.seed is None and arguments.steps is None:
        raise ConfigError(
            f"config diff: there is nothing to compare {chosen.name} with. Name a second "
            "experiment, or a change: --with NAME, --target MACHINE, key.path=value, --seed or "
            "--steps."
        )
    return chosen.base, chosen.config


def _list(arguments: argparse.Namespace) -> int:
    import_packages(arguments.imports)
    known = experiments()
    if arguments.json:
        listed = {name: found.about for name, found in known.items()}
        known_targets = list(target_forms())
        print_json(
            {"experiments": listed, "modifiers": list(modifiers()), "targets": known_targets}
        )
        return 0
    _print_table({name: found.about for name, found in known.items() if not found.variant_of})
    _print_variants([found for found in known.values() if found.variant_of])
    if changes := modifiers():
        print("\nmodifiers, for --with:")
        _print_table({_usage(name, change): _about(change) for name, change in changes.items()})
    print("\ntargets, for --target (2x in front means two slices):")
    _print_table(target_forms())
    return 0


def _print_variants(variants: list[Experiment]) -> None:
    """Names the variants by what they add to a size's name: they would be hundreds of lines."""
    if not variants:
        return
    suffixes = sorted({found.name.removeprefix(found.variant_of) for found in variants})
    print(
        f"\nand {len(variants)} variants of these: NAME{', NAME'.join(suffixes)} "
        "(--json lists them all)"
    )


def _params(arguments: argparse.Namespace) -> int:
    from dovetail.module import parameter_specs

    model = choose(arguments).config.build().model
    specs = parameter_specs(model)
    total = sum(spec.size for spec in specs.values())
    active = sum(spec.active_size for spec in specs.values())
    tree = _by_module({path: spec.size for path, spec in specs.items()})
    if arguments.json:
        print_json({"total": total, "active": active, "by_module": tree})
        return 0
    if active != total:
        print(f"{count(active):>8}  active for each token, of:")
    for path, number in tree.items():
        depth = path.count("/") + 1 if path else 0
        print(f"{count(number):>8}  {'  ' * depth}{path.rpartition('/')[2] or 'total'}")
    return 0


def _by_module(sizes: dict[str, int]) -> dict[str, int]:
    """Adds sizes up along the path; '' is the whole model."""
    tree: dict[str, int] = {}
    for path, number in sizes.items():
        pieces = path.split("/")
        for depth in range(len(pieces) + 1):
            prefix = "/".join(pieces[:depth])
            tree[prefix] = tree.get(prefix, 0) + number
    return dict(sorted(tree.items()))


def _print_table(rows: dict[str, str]) -> None:
    width = max(len(name) for name in rows)
    for name, about in rows.items():
        print(f"{name:<{width}}  {about}".rstrip())


def _usage(name: str, modifier: Callable[..., Any]) -> str:
    """Writes a modifier with its arguments the way that --with takes them."""
    parameters = list(inspect.signature(modifier).parameters.values())[1:]
    needed = [
        f"{each.name}={'...' if each.default is each.empty else each.default}"
        for each in parameters
    ]
    return f"{name}:{','.join(needed)}" if needed else name


def _about(modifier: Callable[..., Any]) -> str:
    return (inspect.getdoc(modifier) or "").partition("\n")[0]
