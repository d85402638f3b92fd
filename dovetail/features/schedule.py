"""Learning-rate schedules by name: `--with schedule:name=cosine`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature

NAMES = ("warmup-stable-decay", "constant", "cosine", "inverse-square-root", "linear")


@feature(
    "schedule",
    kind="learning",
    files=("learner/named_schedules.py",),
    needs={"dovetail.learner.schedules:WarmedUp": "the rate is not one of the learner's schedules"},
    trials=tuple({"name": name} for name in NAMES),
)
def by_schedule(config: Any, name: str = "warmup-stable-decay") -> Any:
    """The learning rate follows another schedule; its peak and warm-up stay."""
    from dovetail.learner.named_schedules import named_schedule
    from dovetail.learner.schedules import WarmedUp

    return replace(config, WarmedUp, named_schedule(name))
