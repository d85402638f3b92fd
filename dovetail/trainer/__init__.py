"""The trainer: where model, learner, data and runtime meet."""

from dovetail.trainer.evaluators import ByteTrigram, HeldOutLoss, PeriodicEvaluator
from dovetail.trainer.interfaces import Evaluation, Evaluator, StateLearner, StateSaver
from dovetail.trainer.loop import Hooks, NonFiniteError, Outcome
from dovetail.trainer.program import Program
from dovetail.trainer.samples import Samples, TextJudge
from dovetail.trainer.start import FromRun, FromScratch, PartAsModel, PartFromRun, Start
from dovetail.trainer.trainer import Trainer

__all__ = [
    "ByteTrigram",
    "Evaluation",
    "Evaluator",
    "FromRun",
    "FromScratch",
    "HeldOutLoss",
    "Hooks",
    "NonFiniteError",
    "Outcome",
    "PartAsModel",
    "PartFromRun",
    "PeriodicEvaluator",
    "Program",
    "Samples",
    "Start",
    "StateLearner",
    "StateSaver",
    "TextJudge",
    "Trainer",
]
