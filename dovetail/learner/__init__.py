"""The learner: loss to gradients to updates. It knows specs and paths, and nothing of models."""

from dovetail.config import import_submodules
from dovetail.learner.accumulate import Accumulate
from dovetail.learner.ema import Ema
from dovetail.learner.freezing import select_trainable
from dovetail.learner.gradients import Autodiff
from dovetail.learner.groups import ParameterGroup
from dovetail.learner.hyperparameters import Hyperparameters
from dovetail.learner.learner import Learner
from dovetail.learner.optimizers.base import (
    Elementwise,
    OptaxOptimizer,
    Optimizer,
    OptimizerWrapper,
    PerTensor,
    chain,
    replace_inner_optimizer,
)
from dovetail.learner.optimizers.library import Adafactor, AdamW, Lion, Muon, Sgd
from dovetail.learner.optimizers.state_axes import LogicalAxes
from dovetail.learner.pipeline import GPipe, OneForwardOneBackward
from dovetail.learner.schedules import (
    BaseSchedule,
    ConstantSchedule,
    CosineSchedule,
    InverseSquareRootSchedule,
    Schedule,
    WarmupStableDecaySchedule,
)
from dovetail.learner.state import (
    StepReport,
    TrainState,
    averaged_parameters,
    clear_halt,
    main_loss,
)

import_submodules(__name__)  # so that config text may name every optimizer

__all__ = [
    "Accumulate",
    "Adafactor",
    "AdamW",
    "Autodiff",
    "BaseSchedule",
    "ConstantSchedule",
    "CosineSchedule",
    "Elementwise",
    "Ema",
    "GPipe",
    "Hyperparameters",
    "InverseSquareRootSchedule",
    "Learner",
    "Lion",
    "LogicalAxes",
    "Muon",
    "OneForwardOneBackward",
    "OptaxOptimizer",
    "Optimizer",
    "OptimizerWrapper",
    "ParameterGroup",
    "PerTensor",
    "Schedule",
    "Sgd",
    "StepReport",
    "TrainState",
    "WarmupStableDecaySchedule",
    "averaged_parameters",
    "chain",
    "clear_halt",
    "main_loss",
    "replace_inner_optimizer",
    "select_trainable",
]
