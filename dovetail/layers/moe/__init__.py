"""Mixture of experts: a router chooses among experts for each token, and a dispatch runs them.

Shape letters of this folder, beside those of the room: X experts, K choices of a token (not
key-value heads here), C capacity of an expert in a row, N rows (a token times its choices).
"""

from dovetail.layers.moe.balancing import LossFreeBias, NoBias, SelectionBias
from dovetail.layers.moe.capacity import Capacity
from dovetail.layers.moe.dispatch import Dispatch, Dispatched
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
    ChoiceWeights,
    NormalizedWeights,
    Scores,
    ScoreWeights,
    SigmoidScores,
    SoftmaxScores,
    SoftmaxWeights,
)
from dovetail.layers.moe.selection import GroupedTopExperts, Selection, TopExperts

__all__ = [
    "Capacity",
    "ChoiceWeights",
    "Dispatch",
    "Dispatched",
    "Dropless",
    "GroupedTopExperts",
    "LoadBalanceLoss",
    "LossFreeBias",
    "MixtureOfExperts",
    "NoBias",
    "NormalizedWeights",
    "Router",
    "RouterZLoss",
    "Routing",
    "RoutingLoss",
    "ScoreWeights",
    "Scores",
    "Selection",
    "SelectionBias",
    "SigmoidScores",
    "SoftmaxScores",
    "SoftmaxWeights",
    "TopExperts",
    "TopKRouter",
    "without_balance_loss",
]
