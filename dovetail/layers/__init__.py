"""The layer library: one idea a file, kinds in folders. Layers know their children by interface.

This door shows what every model is made of. What only some models have (rotary positions,
experts, adapters) is imported from its own file, such as `dovetail.layers.positions.rotary`: so
that a feature is added, or taken away, without a line here.

Layers tag what a remat policy may want to keep: `attention_query`, `attention_key`,
`attention_value`, `attention_output` (before the last projection), `feed_forward_gate`,
`feed_forward_up` and `feed_forward_output`.
"""

from dovetail.config import import_submodules
from dovetail.layers.attention.attention import Attention
from dovetail.layers.attention.base import AnyAttention
from dovetail.layers.attention.memory import ContiguousMemory, KeyValueMemory, NoMemory, Remembered
from dovetail.layers.attention.mixing import Mixing
from dovetail.layers.attention.scores import Scores, Scoring
from dovetail.layers.decoder import Decoder
from dovetail.layers.dropout import Dropout
from dovetail.layers.embedding import Embedding
from dovetail.layers.feed_forward.feed_forward import AnyFeedForward, FeedForward
from dovetail.layers.interfaces import (
    AddsLowRank,
    DecodesOtherwise,
    Exact,
    Forgetful,
    Layer,
    LowRank,
    Mergeable,
    NormsOutput,
    Places,
    PositionEncoding,
    Residual,
    SequenceMixer,
    TokenMap,
    Vocabulary,
)
from dovetail.layers.linear.linear import Linear
from dovetail.layers.loss.next_token import AnyLoss, Logits, NextTokenLoss, TokenLoss
from dovetail.layers.norms.rms import AnyNorm, RMSNorm
from dovetail.layers.positions.input import AnyInputPositions, InputPositions, NoInputPositions
from dovetail.layers.positions.none import AnyPositions, NoPositions
from dovetail.layers.residual.pre import NormedResidual, PreNorm
from dovetail.layers.stack.stack import (
    Pattern,
    Stack,
    arrange,
    last_layer,
    layers_of,
    rearrange,
)
from dovetail.layers.stack.stages import LAYER_AXES, in_stages
from dovetail.layers.stack.transformer import TransformerBlock

import_submodules(__name__)  # so that config text may name every layer

__all__ = [
    "LAYER_AXES",
    "AddsLowRank",
    "AnyAttention",
    "AnyFeedForward",
    "AnyInputPositions",
    "AnyLoss",
    "AnyNorm",
    "AnyPositions",
    "Attention",
    "ContiguousMemory",
    "Decoder",
    "DecodesOtherwise",
    "Dropout",
    "Embedding",
    "Exact",
    "FeedForward",
    "Forgetful",
    "InputPositions",
    "KeyValueMemory",
    "Layer",
    "Linear",
    "Logits",
    "LowRank",
    "Mergeable",
    "Mixing",
    "NextTokenLoss",
    "NoInputPositions",
    "NoMemory",
    "NoPositions",
    "NormedResidual",
    "NormsOutput",
    "Pattern",
    "Places",
    "PositionEncoding",
    "PreNorm",
    "RMSNorm",
    "Remembered",
    "Residual",
    "Scores",
    "Scoring",
    "SequenceMixer",
    "Stack",
    "TokenLoss",
    "TokenMap",
    "TransformerBlock",
    "Vocabulary",
    "arrange",
    "in_stages",
    "last_layer",
    "layers_of",
    "rearrange",
]
