"""Hyperparameters that are arguments of the compiled train step, not constants in it.

A sweep over them compiles one program. The values are the numbers that a component has as
attributes after it is built. To compute with other values, a copy of the component is bound to
them: its methods read the same attributes, which are then traced scalars.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np

T = TypeVar("T")


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """The hyperparameters of a step, as float32 scalars."""

    schedule: dict[str, Any]
    """The numbers of the learning-rate schedule, by attribute; empty if it has only constants."""
    weight_decay: Any
    """The learner's weight decay."""
    clip_norm: Any
    """The largest gradient norm; None disables clipping, which is another program."""
    group_rates: tuple[Any, ...]
    """For each parameter group, the factor of the learning rate."""
    group_weight_decays: tuple[Any, ...]
    """For each parameter group, its weight decay."""


def scalar(value: float | int) -> np.ndarray:
    """Returns a number as an argument of a program."""
    return np.asarray(value, np.float32)


def numbers_of(component: Any) -> dict[str, np.ndarray]:
    """Returns the numeric attributes of a component by name, without booleans."""
    found = {name: value for name, value in vars(component).items() if type(value) in (int, float)}
    return {name: scalar(value) for name, value in sorted(found.items())}


def bind(component: T, values: Mapping[str, Any]) -> T:
    """Returns a copy of a component with these attributes."""
    bound = copy.copy(component)
    vars(bound).update(values)
    return bound
