"""Applying a target to an experiment: its machine, its rule, and the rule's changes."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dovetail.config import Config, ConfigError, Difference, diff, through
from dovetail.targets.machine import Machine
from dovetail.targets.names import parse_target
from dovetail.targets.rule import LABEL, TargetRule, find_rule

if TYPE_CHECKING:
    from dovetail.trainer import Trainer

# The module in front of a class name in config text; messages leave it out.
_MODULE = re.compile(r"\bdovetail[\w.]*:")


@dataclass(frozen=True)
class AppliedTarget:
    """An experiment fitted to a machine by a rule."""

    machine: Machine
    rule: TargetRule
    config: Trainer.Config
    changes: tuple[Difference, ...]

    def summary(self, exclude: Collection[str] = ()) -> str:
        """Describes the rule's changes in one line, without paths that were overridden later."""
        changes = [str(each) for each in self.changes if each.path not in exclude]
        done = _MODULE.sub("", "; ".join(changes)) or "nothing"
        return f"target {self.machine.name} ({self.machine}): rule {self.rule.name} changes {done}"


def apply_target(config: Trainer.Config, name: str) -> AppliedTarget:
    """Returns the experiment with the target's rule applied. The argument is not modified."""
    machine = parse_target(name)
    rule = find_rule(machine)
    with through(f"{LABEL} {name}"):
        result = rule.apply(config.clone(), machine)
    if not isinstance(result, Config):
        raise ConfigError(
            f"The target rule {rule.name!r} returned {type(result).__name__}, not a config. Does "
            "it end with `return config`?"
        )
    result = result.clone()
    changes = tuple(each for each in diff(config, result) if not each.by_default)
    return AppliedTarget(machine, rule, result, changes)
