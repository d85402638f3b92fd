"""Chaos: real training while faults strike, compared with an undisturbed run."""

from dovetail.runtime.chaos.harness import Chaos
from dovetail.runtime.chaos.judging import Result
from dovetail.runtime.chaos.kinds import CONTROLS, KINDS
from dovetail.runtime.chaos.report import append_result, loss_bound, read_results, summary
from dovetail.runtime.chaos.trials import Trial, long_trials, short_trials, trial

__all__ = [
    "CONTROLS",
    "KINDS",
    "Chaos",
    "Result",
    "Trial",
    "append_result",
    "long_trials",
    "loss_bound",
    "read_results",
    "short_trials",
    "summary",
    "trial",
]
