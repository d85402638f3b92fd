"""Parameter groups: optimizer, learning rate, weight decay and freezing by path pattern."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from dovetail.config import REQUIRED, Component, ConfigError, did_you_mean
from dovetail.learner.freezing import path_matches
from dovetail.learner.optimizers.base import (
    Optimizer,
    OptimizerConfig,
    Specs,
    build_optimizer,
    partitioned,
    required_extras,
)
from dovetail.module import ParameterSpec

_NO_GROUP = -1


class ParameterGroup(Component):
    """The parameters that a pattern matches, and what is different for them."""

    class Config(Component.Config["ParameterGroup"]):
        """A pattern as in `Learner.Config.frozen`, without "!". None: the learner's value."""

        pattern: str = REQUIRED
        optimizer: OptimizerConfig | None = None
        rate: float = 1.0  # times the learning rate
        weight_decay: float | None = None
        frozen: bool = False

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.pattern, self.frozen = config.pattern, config.frozen
        self.rate, self.weight_decay = config.rate, config.weight_decay
        self.optimizer = None if config.optimizer is None else build_optimizer(config.optimizer)
        for name in ("rate", "weight_decay"):
            value = getattr(config, name)
            if value is not None and not value >= 0:
                raise ConfigError(f"{config.locate(name)}: expected 0 or more, got {value}.")


@dataclass(frozen=True)
class GroupMembers:
    """Which group each parameter belongs to, down to single layers of a stack."""

    groups: tuple[ParameterGroup, ...]
    indices: dict[str, np.ndarray]
    """The group of each layer, -1 for none, shaped to broadcast; only parameters in a group."""

    def is_frozen(self, path: str, layers: int) -> list[bool]:
        """Returns whether each layer of a parameter is in a frozen group."""
        if path not in self.indices:
            return [False] * layers
        found = self.indices[path].reshape(-1).tolist()
        return [index != _NO_GROUP and self.groups[index].frozen for index in found]

    def number(self, path: str, own: Any, by_group: Sequence[Any]) -> Any:
        """Returns the number of a parameter: its group's, or `own`; by layer where they differ."""
        if path not in self.indices:
            return own
        index = self.indices[path]
        first = index.flat[0]
        if (index == first).all():
            return own if first == _NO_GROUP else by_group[first]
        return jnp.stack([jnp.asarray(value) for value in (*by_group, own)])[index]

    def optimizer(self, own: Optimizer) -> Optimizer:
        """Returns the optimizer of all parameters: each group's, and `own` for the rest."""
        if all(group.optimizer is None for group in self.groups):
            return own
        by_path = {path: self._optimizer_name(path) for path in self.indices}
        optimizers = {
            f"group_{index}": group.optimizer
            for index, group in enumerate(self.groups)
            if group.optimizer is not None
        }
        return GroupedOptimizer({**optimizers, _OTHERS: own}, by_path)

    def _optimizer_name(self, path: str) -> str:
        names = {
            f"group_{index}"
            if index != _NO_GROUP and self.groups[index].optimizer is not None
            else _OTHERS
            for index in self.indices[path].reshape(-1).tolist()
        }
        if len(names) > 1:
            named = next(name for name in sorted(names) if name != _OTHERS)
            pattern = self.groups[int(named.removeprefix("group_"))].pattern
            raise ConfigError(
                f"learner.groups: the pattern {pattern!r} gives an optimizer to some layers of the "
                f"stack {path}, but a stack has one optimizer. Match all of its layers ({path!r}), "
                "or set only the group's rate, weight_decay or frozen."
            )
        return names.pop()


_OTHERS = "others"


class GroupedOptimizer:
    """Several optimizers, each for some parameters. The state is a dict by name of optimizer."""

    def __init__(self, optimizers: Mapping[str, Optimizer], by_path: Mapping[str, str]) -> None:
        """Takes the optimizers by name, and the name for each path; "others" for the rest."""
        self.optimizers, self.by_path = optimizers, by_path

    def transformation(self, specs: Specs) -> optax.GradientTransformation:
        """Returns the directions of all of them."""
        groups: dict[str, dict[str, ParameterSpec]] = {}
        for path, spec in specs.items():
            groups.setdefault(self.by_path.get(path, _OTHERS), {})[path] = spec
        return partitioned(
            {
                name: (tuple(group), self.optimizers[name].transformation(group))
                for name, group in sorted(groups.items())
            }
        )

    def required_extras(self) -> tuple[str, ...]:
        """Returns the extras that any of them needs."""
        names = [required_extras(optimizer) for optimizer in self.optimizers.values()]
        return tuple(dict.fromkeys(name for each in names for name in each))


def find_members(
    specs: Mapping[str, ParameterSpec], groups: tuple[ParameterGroup, ...]
) -> GroupMembers:
    """Returns the group of each parameter: the first whose pattern matches it.

    Patterns are matched as those of `select_trainable`. One that matches nothing is an error.
    """
    indices: dict[str, np.ndarray] = {}
    matched = [0] * len(groups)
    used: set[int] = set()
    for path, spec in specs.items() if groups else ():
        layers = []
        for layer_path in spec.layer_paths(path):
            hits = [i for i, g in enumerate(groups) if path_matches(g.pattern, layer_path, path)]
            for hit in hits:
                matched[hit] += 1
            layers.append(hits[0] if hits else _NO_GROUP)
        used |= set(layers)
        if any(index != _NO_GROUP for index in layers):
            ones = (1,) * len(spec.layer_shape)
            indices[path] = np.array(layers).reshape(*spec.shape[: spec.stacked], *ones)
    for index, group in enumerate(groups):
        if index not in used:
            raise _unused(specs, index, group, matched[index])
    return GroupMembers(groups, indices)


def _unused(
    specs: Mapping[str, ParameterSpec], index: int, group: ParameterGroup, matched: int
) -> ConfigError:
    where = f"learner.groups.{index}: the pattern {group.pattern!r}"
    if matched:
        return ConfigError(
            f"{where} matches only parameters that an earlier group has. The first group that "
            "matches decides: put the narrower pattern first."
        )
    known = {path for stack, spec in specs.items() for path in spec.layer_paths(stack)}
    advice = did_you_mean(group.pattern, known | set(specs))
    return ConfigError(f"{where} matches no parameter. {advice} `*` matches any characters.")
