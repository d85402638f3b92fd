"""Optimizers by name: `--with optimizer:name=lion,peak=1e-4`."""

from __future__ import annotations

from typing import Any

from dovetail.features.feature import feature

# fmt: off
NAMES = (
    "adamw", "adabelief", "adadelta", "adafactor", "adagrad", "adamax", "adan", "ademamix", "adopt",
    "amsgrad", "lamb", "lion", "muon", "nadamw", "novograd", "radam", "rmsprop", "sgd", "sign-sgd",
    "sm3", "yogi",
)
# fmt: on


@feature(
    "optimizer",
    kind="learning",
    files=("learner/named_optimizers.py",),
    trials=tuple({"name": name} for name in NAMES),
)
def by_optimizer(config: Any, name: str = "adamw", peak: float | None = None) -> Any:
    """Trains by another optimizer; `peak` is its learning rate, for few share one.

    What changes the directions of the old one (rates by fan-in) changes those of the new one.
    """
    from dovetail.learner import with_directions
    from dovetail.learner.named_optimizers import named_optimizer

    inside = named_optimizer(name)
    config.learner.optimizer = with_directions(config.learner.optimizer, inside)
    if peak is not None:
        config.learner.schedule.peak = peak
    return config
