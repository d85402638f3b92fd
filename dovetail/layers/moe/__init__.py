"""Mixture of experts (MoE): a router selects experts for each token, and a dispatch runs them.

Shape letters, beside those of all layers: X experts, K selected experts of a token (top-k, not
key-value heads), C capacity of an expert per row of the batch, N rows (token times top-k).
"""

from dovetail.layers.moe.capacity import Capacity
from dovetail.layers.moe.dispatch import Dispatch, DispatchOutput
from dovetail.layers.moe.dropless import Dropless
from dovetail.layers.moe.losses import (
    LoadBalanceLoss,
    RouterZLoss,
    RoutingLoss,
    without_balance_loss,
)
from dovetail.layers.moe.mixture import MixtureOfExperts
from dovetail.layers.moe.router import Router, Routing, TopKRouter
from dovetail.layers.moe.scoring import (
    ExpertWeights,
    NormalizedWeights,
    RouterScores,
    ScoreWeights,
    SigmoidScores,
    SoftmaxScores,
    SoftmaxWeights,
)
from dovetail.layers.moe.selection import (
    ExpertSelection,
    GroupLimitedSelection,
    LossFreeBias,
    NoSelectionBias,
    SelectionBias,
    TopKSelection,
)

__all__ = [
    "Capacity",
    "Dispatch",
    "DispatchOutput",
    "Dropless",
    "ExpertSelection",
    "ExpertWeights",
    "GroupLimitedSelection",
    "LoadBalanceLoss",
    "LossFreeBias",
    "MixtureOfExperts",
    "NoSelectionBias",
    "NormalizedWeights",
    "Router",
    "RouterScores",
    "RouterZLoss",
    "Routing",
    "RoutingLoss",
    "ScoreWeights",
    "SelectionBias",
    "SigmoidScores",
    "SoftmaxScores",
    "SoftmaxWeights",
    "TopKRouter",
    "TopKSelection",
    "without_balance_loss",
]
