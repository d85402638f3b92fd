"""Optimizers and learning-rate schedules by name: `--with optimizer:name=lion,peak=1e-4`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature

# fmt: off
_OPTIMIZERS = (
    "adamw", "adabelief", "adadelta", "adafactor", "adagrad", "adamax", "adan", "ademamix", "adopt",
    "amsgrad", "lamb", "lion", "muon", "nadamw", "novograd", "radam", "rmsprop", "sgd", "sign-sgd",
    "sm3", "yogi",
)
# fmt: on
_SCHEDULES = ("warmup-stable-decay", "constant", "cosine", "inverse-square-root", "linear")


@feature(
    "optimizer",
    files=("learner/optimizers/library.py:named_optimizer",),
    trials=tuple({"name": name} for name in _OPTIMIZERS),
)
def optimizer(config: Any, name: str = "adamw", peak: float | None = None) -> Any:
    """Another optimizer, by name; `peak` sets its peak learning rate.

    Wrappers of the old optimizer (learning rates by fan-in) wrap the new one.
    """
    from dovetail.learner import replace_inner_optimizer
    from dovetail.learner.optimizers.library import named_optimizer

    inside = named_optimizer(name)
    config.learner.optimizer = replace_inner_optimizer(config.learner.optimizer, inside)
    if peak is not None:
        config.learner.schedule.peak = peak
    return config


@feature(
    "schedule",
    files=("learner/schedules.py:named_schedule",),
    needs={"dovetail.learner.schedules:WarmupSchedule": "there is no warmup to keep"},
    trials=tuple({"name": name} for name in _SCHEDULES),
)
def schedule(config: Any, name: str = "warmup-stable-decay") -> Any:
    """Another learning-rate schedule, by name; peak and warmup stay."""
    from dovetail.learner.schedules import WarmupSchedule, named_schedule

    return replace(config, WarmupSchedule, named_schedule(name))
