"""Applying a target to an experiment: its machine, its rule, and what the rule changed."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dovetail.config import Config, ConfigError, Difference, diff, through
from dovetail.targets.machine import Machine
from dovetail.targets.names import parse_target
from dovetail.targets.registry import LABEL, Rule, find_rule

if TYPE_CHECKING:
    from dovetail.trainer import Trainer

# What stands before a part's name in a config's text; for people the name is enough.
_MODULE = re.compile(r"\bdovetail[\w.]*:")


@dataclass(frozen=True)
class Targeted:
    """An experiment fitted to a machine."""

    machine: Machine
    rule: Rule
    config: Trainer.Config
    changes: tuple[Difference, ...]

    def told(self, but: Collection[str] = ()) -> str:
        """Says what the rule did, in one line, leaving out paths that were set again after it."""
        changes = [str(each) for each in self.changes if each.path not in but]
        done = _MODULE.sub("", "; ".join(changes)) or "nothing"
        return f"target {self.machine.name} ({self.machine}): rule {self.rule.name} changes {done}"


def apply_target(config: Trainer.Config, name: str) -> Targeted:
    """Returns the experiment as the target's rule makes it. The argument stays as it is."""
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
    return Targeted(machine, rule, result, changes)
