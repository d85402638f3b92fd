"""The layer library: one idea a file. Layers know their children by interface, and no model at all.

They tag what a remat policy may want to keep: `attention_query`, `attention_key`,
`attention_value`, `attention_output` (before the last projection), `feed_forward_gate`,
`feed_forward_up`, `feed_forward_output`, `router_logits` and `mixture_output`.
"""

from dovetail.layers.attention import Attention
from dovetail.layers.decoder import Decoder
from dovetail.layers.dropout import Dropout
from dovetail.layers.embedding import Embedding
from dovetail.layers.feed_forward import FeedForward
from dovetail.layers.interfaces import (
    DecodesOtherwise,
    Layer,
    Places,
    PositionEncoding,
    Residual,
    SequenceMixer,
    TokenMap,
    Vocabulary,
)
from dovetail.layers.linear import Linear
from dovetail.layers.memory import ContiguousMemory, KeyValueMemory, NoMemory, Remembered
from dovetail.layers.moe import (
    Capacity,
    ChoiceWeights,
    Dispatch,
    Dispatched,
    Dropless,
    GroupedTopExperts,
    LoadBalanceLoss,
    LossFreeBias,
    MixtureOfExperts,
    NoBias,
    NormalizedWeights,
    Router,
    RouterZLoss,
    Routing,
    RoutingLoss,
    Scores,
    ScoreWeights,
    Selection,
    SelectionBias,
    SigmoidScores,
    SoftmaxScores,
    SoftmaxWeights,
    TopExperts,
    TopKRouter,
)
from dovetail.layers.norms import LayerNorm, RMSNorm
from dovetail.layers.residual import NormedResidual, PostNorm, PreNorm, SandwichNorm
from dovetail.layers.rotary import NoPositions, RotaryEmbedding
from dovetail.layers.stack import Pattern, Stack
from dovetail.layers.token_loss import NextTokenLoss, TokenLoss
from dovetail.layers.transformer import TransformerBlock

__all__ = [
    "Attention",
    "Capacity",
    "ChoiceWeights",
    "ContiguousMemory",
    "Decoder",
    "DecodesOtherwise",
    "Dispatch",
    "Dispatched",
    "Dropless",
    "Dropout",
    "Embedding",
    "FeedForward",
    "GroupedTopExperts",
    "KeyValueMemory",
    "Layer",
    "LayerNorm",
    "Linear",
    "LoadBalanceLoss",
    "LossFreeBias",
    "MixtureOfExperts",
    "NextTokenLoss",
    "NoBias",
    "NoMemory",
    "NoPositions",
    "NormalizedWeights",
    "NormedResidual",
    "Pattern",
    "Places",
    "PositionEncoding",
    "PostNorm",
    "PreNorm",
    "RMSNorm",
    "Remembered",
    "Residual",
    "RotaryEmbedding",
    "Router",
    "RouterZLoss",
    "Routing",
    "RoutingLoss",
    "SandwichNorm",
    "ScoreWeights",
    "Scores",
    "Selection",
    "SelectionBias",
    "SequenceMixer",
    "SigmoidScores",
    "SoftmaxScores",
    "SoftmaxWeights",
    "Stack",
    "TokenLoss",
    "TokenMap",
    "TopExperts",
    "TopKRouter",
    "TransformerBlock",
    "Vocabulary",
]
