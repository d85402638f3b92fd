"""The layer library: one idea a file. Layers know their children by interface, and no model at all.

They tag what a remat policy may want to keep: `attention_query`, `attention_key`,
`attention_value`, `attention_output` (before the last projection), `feed_forward_gate`,
`feed_forward_up` and `feed_forward_output`.
"""

from dovetail.layers.attention import Attention
from dovetail.layers.decoder import Decoder
from dovetail.layers.dropout import Dropout
from dovetail.layers.embedding import Embedding, ScaledEmbedding
from dovetail.layers.feed_forward import (
    AnyFeedForward,
    ClampedFeedForward,
    FeedForward,
    PlainFeedForward,
    exact_gelu,
)
from dovetail.layers.input_positions import InputPositions, LearnedPositions, NoInputPositions
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
from dovetail.layers.latent_attention import LatentAttention
from dovetail.layers.linear import Linear, LowRankLinear, NormedLinear
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
from dovetail.layers.norms import LayerNorm, OffsetRMSNorm, RMSNorm
from dovetail.layers.residual import BranchNorm, NormedResidual, PostNorm, PreNorm, SandwichNorm
from dovetail.layers.rotary import InterleavedRotaryEmbedding, NoPositions, RotaryEmbedding
from dovetail.layers.rotary_scaling import (
    FrequencyScaling,
    LinearScaling,
    Llama3Scaling,
    NoScaling,
    NtkScaling,
    YarnScaling,
    yarn_magnitude,
)
from dovetail.layers.sinks import LearnedSinks, NoSinks, Sinks
from dovetail.layers.stack import Pattern, Stack, arrange
from dovetail.layers.token_loss import NextTokenLoss, TokenLoss
from dovetail.layers.transformer import TransformerBlock

__all__ = [
    "AnyFeedForward",
    "Attention",
    "BranchNorm",
    "Capacity",
    "ChoiceWeights",
    "ClampedFeedForward",
    "ContiguousMemory",
    "Decoder",
    "DecodesOtherwise",
    "Dispatch",
    "Dispatched",
    "Dropless",
    "Dropout",
    "Embedding",
    "FeedForward",
    "FrequencyScaling",
    "GroupedTopExperts",
    "InputPositions",
    "InterleavedRotaryEmbedding",
    "KeyValueMemory",
    "LatentAttention",
    "Layer",
    "LayerNorm",
    "LearnedPositions",
    "LearnedSinks",
    "Linear",
    "LinearScaling",
    "Llama3Scaling",
    "LoadBalanceLoss",
    "LossFreeBias",
    "LowRankLinear",
    "MixtureOfExperts",
    "NextTokenLoss",
    "NoBias",
    "NoInputPositions",
    "NoMemory",
    "NoPositions",
    "NoScaling",
    "NoSinks",
    "NormalizedWeights",
    "NormedLinear",
    "NormedResidual",
    "NtkScaling",
    "OffsetRMSNorm",
    "Pattern",
    "Places",
    "PlainFeedForward",
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
    "ScaledEmbedding",
    "ScoreWeights",
    "Scores",
    "Selection",
    "SelectionBias",
    "SequenceMixer",
    "SigmoidScores",
    "Sinks",
    "SoftmaxScores",
    "SoftmaxWeights",
    "Stack",
    "TokenLoss",
    "TokenMap",
    "TopExperts",
    "TopKRouter",
    "TransformerBlock",
    "Vocabulary",
    "YarnScaling",
    "arrange",
    "exact_gelu",
    "yarn_magnitude",
]
