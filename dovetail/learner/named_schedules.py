"""Schedules by the names that people know them by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dovetail.config import ConfigError, ConfigOf, did_you_mean
from dovetail.learner.schedules import (
    Constant,
    Cosine,
    InverseSquareRoot,
    Schedule,
    WarmupStableDecay,
)

_SCHEDULES: Mapping[str, Callable[[], Any]] = {
    "constant": Constant.Config,
    "cosine": Cosine.Config,
    "inverse-square-root": InverseSquareRoot.Config,
    "linear": lambda: WarmupStableDecay.Config(decay_fraction=1.0),
    "warmup-stable-decay": WarmupStableDecay.Config,
}


def schedule_names() -> list[str]:
    """Returns the names of all schedules."""
    return sorted(_SCHEDULES)


def named_schedule(name: str) -> ConfigOf[Schedule]:
    """Returns the config of a schedule; "linear" falls from the end of the warm-up to zero."""
    if name not in _SCHEDULES:
        known = ", ".join(_SCHEDULES)
        advice = did_you_mean(name, _SCHEDULES)
        raise ConfigError(f"There is no schedule {name!r}. {advice} Known: {known}.")
    found: ConfigOf[Schedule] = _SCHEDULES[name]()
    return found
