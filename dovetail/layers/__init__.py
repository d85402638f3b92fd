"""The layer library: one idea a file. Layers know their children by interface, and no model at all.

They tag what a remat policy may want to keep: `attention_query`, `attention_key`,
`attention_value`, `attention_output` (before the last projection), `feed_forward_gate`,
`feed_forward_up` and `feed_forward_output`.
"""

from dovetail.layers.attention import Attention
from dovetail.layers.decoder import Decoder
from dovetail.layers.dropout import Dropout
from dovetail.layers.embedding import Embedding
from dovetail.layers.feed_forward import FeedForward
from dovetail.layers.interfaces import (
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
from dovetail.layers.norms import LayerNorm, RMSNorm
from dovetail.layers.residual import NormedResidual, PostNorm, PreNorm, SandwichNorm
from dovetail.layers.rotary import NoPositions, RotaryEmbedding
from dovetail.layers.stack import Pattern, Stack
from dovetail.layers.token_loss import NextTokenLoss, TokenLoss
from dovetail.layers.transformer import TransformerBlock

__all__ = [
    "Attention",
    "ContiguousMemory",
    "Decoder",
    "Dropout",
    "Embedding",
    "FeedForward",
    "KeyValueMemory",
    "Layer",
    "LayerNorm",
    "Linear",
    "NextTokenLoss",
    "NoMemory",
    "NoPositions",
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
    "SandwichNorm",
    "SequenceMixer",
    "Stack",
    "TokenLoss",
    "TokenMap",
    "TransformerBlock",
    "Vocabulary",
]
