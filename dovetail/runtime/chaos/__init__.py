"""Chaos: real training while faults strike, compared with an undisturbed run."""

from dovetail.runtime.chaos.harness import Chaos
from dovetail.runtime.chaos.judging import Result
from dovetail.runtime.chaos.kinds import CONTROLS, KINDS
from dovetail.runtime.chaos.report import loss_bound, summary
from dovetail.runtime.chaos.results_file import ResultsFile
from dovetail.runtime.chaos.trials import Trial, long_trials, select_trials, short_trials, trial

__all__ = [
    "CONTROLS",
    "KINDS",
    "Chaos",
    "Result",
    "ResultsFile",
    "Trial",
    "long_trials",
    "loss_bound",
    "select_trials",
    "short_trials",
    "summary",
    "trial",
]
