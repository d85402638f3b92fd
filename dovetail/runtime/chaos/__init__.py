"""Chaos: real training while faults strike, compared with an undisturbed run."""

from dovetail.runtime.chaos.harness import Chaos, Result
from dovetail.runtime.chaos.kinds import (
    CONTROLS,
    KINDS,
    Trial,
    long_trials,
    short_trials,
    trial,
)

__all__ = [
    "CONTROLS",
    "KINDS",
    "Chaos",
    "Result",
    "Trial",
    "long_trials",
    "short_trials",
    "trial",
]
