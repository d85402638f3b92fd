"""The learner: loss to gradients to updates. It knows specs and paths, and nothing of models."""

from dovetail.config import import_submodules
from dovetail.learner.accumulate import Accumulate, split_batch
from dovetail.learner.axes import LogicalAxes
from dovetail.learner.ema import Ema
from dovetail.learner.freezing import Trained, select_trained
from dovetail.learner.gradients import Autodiff, GradientProducer, Produced
from dovetail.learner.learner import Learner
from dovetail.learner.muon import Muon
from dovetail.learner.optimizer import (
    ChangedOptimizer,
    Elementwise,
    Optimizer,
    PerTensor,
    chain,
    per_tensor,
    with_directions,
)
from dovetail.learner.optimizers import Adafactor, AdamW, Lion, Sgd
from dovetail.learner.pipeline import GPipe, OneForwardOneBackward
from dovetail.learner.schedules import (
    Constant,
    Cosine,
    InverseSquareRoot,
    Schedule,
    WarmupStableDecay,
)
from dovetail.learner.state import StepReport, TrainState, averaged_parameters, main_loss, resumable

import_submodules(__name__)  # so that config text may name every optimizer

__all__ = [
    "Accumulate",
    "Adafactor",
    "AdamW",
    "Autodiff",
    "ChangedOptimizer",
    "Constant",
    "Cosine",
    "Elementwise",
    "Ema",
    "GPipe",
    "GradientProducer",
    "InverseSquareRoot",
    "Learner",
    "Lion",
    "LogicalAxes",
    "Muon",
    "OneForwardOneBackward",
    "Optimizer",
    "PerTensor",
    "Produced",
    "Schedule",
    "Sgd",
    "StepReport",
    "TrainState",
    "Trained",
    "WarmupStableDecay",
    "averaged_parameters",
    "chain",
    "main_loss",
    "per_tensor",
    "resumable",
    "select_trained",
    "split_batch",
    "with_directions",
]
