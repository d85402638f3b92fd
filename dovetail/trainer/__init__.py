"""The trainer: where model, learner, data and runtime meet."""

from dovetail.config import import_submodules
from dovetail.trainer.evaluators import ByteTrigram, HeldOutLoss, PeriodicEvaluator
from dovetail.trainer.fault_handling import FaultError, NonFiniteError
from dovetail.trainer.initialization import Initialization, InitSubmoduleFromModel, RandomInit
from dovetail.trainer.interfaces import (
    Evaluation,
    Evaluator,
    KnowsTrainedParameters,
    StateLearner,
    StateSaver,
)
from dovetail.trainer.loop import Hooks, Interrupted, Outcome
from dovetail.trainer.program import Program
from dovetail.trainer.samples import Samples, TextJudge
from dovetail.trainer.trainer import Trainer, build_model

import_submodules(__name__)  # so that config text may name every evaluator

__all__ = [
    "ByteTrigram",
    "Evaluation",
    "Evaluator",
    "FaultError",
    "HeldOutLoss",
    "Hooks",
    "InitSubmoduleFromModel",
    "Initialization",
    "Interrupted",
    "KnowsTrainedParameters",
    "NonFiniteError",
    "Outcome",
    "PeriodicEvaluator",
    "Program",
    "RandomInit",
    "Samples",
    "StateLearner",
    "StateSaver",
    "TextJudge",
    "Trainer",
    "build_model",
]
