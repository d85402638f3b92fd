"""The list of rules: which one fits experiments to a kind of machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from dovetail.config import ConfigError, import_submodules
from dovetail.targets.machine import Machine

if TYPE_CHECKING:
    from dovetail.trainer import Trainer

RuleFunction = Callable[["Trainer.Config", Machine], "Trainer.Config"]

# What a rule sets says that it came through the option, with the machine's name behind it.
LABEL = "--target"

_OWN = "dovetail."


@dataclass(frozen=True)
class Rule:
    """A modifier for the machines whose names match.

    Attributes:
        name: what messages call it.
        pattern: as in file names (`tpu-*`), for the name of one slice.
        about: one line on it.
        apply: takes a copy of the experiment and the machine, and returns the experiment.
    """

    name: str
    pattern: str
    about: str
    apply: RuleFunction

    def matches(self, machine: Machine) -> bool:
        """Says whether the rule is for a machine."""
        return fnmatchcase(machine.kind, self.pattern)


_rules: dict[str, Rule] = {}


def target_rule(name: str, pattern: str) -> Callable[[RuleFunction], RuleFunction]:
    """Registers a rule. Those of a user's package are asked before the ones that come with us."""

    def register(function: RuleFunction) -> RuleFunction:
        before = _rules.get(name)
        if before is not None and before.apply.__module__ != function.__module__:
            raise ConfigError(
                f"The target rule {name!r} is defined in {before.apply.__module__} and again in "
                f"{function.__module__}. Rename one."
            )
        about = (function.__doc__ or name).strip().splitlines()[0]
        _rules[name] = Rule(name, pattern, about, function)
        return function

    return register


def target_rules() -> list[Rule]:
    """Returns all rules in the order in which they are asked."""
    import_submodules("dovetail.targets.rules")
    return sorted(_rules.values(), key=lambda rule: rule.apply.__module__.startswith(_OWN))


def find_rule(machine: Machine) -> Rule:
    """Returns the first rule that is for a machine; none is an error that lists what there is."""
    rules = target_rules()
    for rule in rules:
        if rule.matches(machine):
            return rule
    listed = ", ".join(f"{rule.name} for {rule.pattern}" for rule in rules)
    raise ConfigError(
        f"--target {machine.name}: no rule is for {machine.kind}. There are: {listed}. Register "
        "one with @target_rule in a package of your own, and pass --import."
    )
