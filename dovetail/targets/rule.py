"""A target rule, which fits experiments to a kind of machine, and how one is registered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from dovetail.config import ConfigError, Registry
from dovetail.targets.machine import Machine

if TYPE_CHECKING:
    from dovetail.trainer import Trainer

RuleFunction = Callable[["Trainer.Config", Machine], "Trainer.Config"]

# The provenance of values that a rule sets: this label and the machine's name.
LABEL = "--target"

_OWN = "dovetail."


@dataclass(frozen=True)
class TargetRule:
    """A modifier for the machines whose names match a pattern.

    Attributes:
        name: its name in messages.
        pattern: a glob such as `tpu-*`, matched against the name of one slice.
        about: a one-line description.
        apply: takes a copy of the experiment and the machine, and returns the experiment.
    """

    name: str
    pattern: str
    about: str
    apply: RuleFunction

    def matches(self, machine: Machine) -> bool:
        """Returns whether the rule applies to a machine."""
        return fnmatchcase(machine.kind, self.pattern)

    def facts(self) -> dict[str, str]:
        """Returns its description as JSON values."""
        return {"name": self.name, "pattern": self.pattern, "about": self.about}


_rules: Registry[TargetRule] = Registry("target rule", "dovetail.targets.rules")


def target_rule(name: str, pattern: str) -> Callable[[RuleFunction], RuleFunction]:
    """Registers a rule. Rules of a user's package take precedence over built-in ones."""

    def register(function: RuleFunction) -> RuleFunction:
        about = (function.__doc__ or name).strip().splitlines()[0]
        _rules.register(name, TargetRule(name, pattern, about, function), function.__module__)
        return function

    return register


def target_rules() -> list[TargetRule]:
    """Returns all rules in order of precedence."""
    _rules.load()
    return sorted(
        _rules.registered().values(), key=lambda rule: rule.apply.__module__.startswith(_OWN)
    )


def find_rule(machine: Machine) -> TargetRule:
    """Returns the first rule that matches a machine; no match is an error that lists all rules."""
    rules = target_rules()
    for rule in rules:
        if rule.matches(machine):
            return rule
    listed = ", ".join(f"{rule.name} for {rule.pattern}" for rule in rules)
    raise ConfigError(
        f"--target {machine.name}: no rule is for {machine.kind}. There are: {listed}. Register "
        "one with @target_rule in a package of your own, and pass --import."
    )
