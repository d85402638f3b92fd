"""The layer library. Layers know their children by interface (`dovetail.layers.interfaces`).

This public interface exports what every model has. Import what only some models have (rotary
embedding, experts, adapters) from its own module, such as `dovetail.layers.positions.rotary`. So a
feature can be added or removed without an edit here.

Layers name the activations that a remat policy may save: `attention_query`, `attention_key`,
`attention_value`, `attention_output` (before the output projection), `feed_forward_gate`,
`feed_forward_up` and `feed_forward_output`.
"""

from dovetail.config import import_submodules
from dovetail.layers.attention.attention import Attention
from dovetail.layers.attention.base import BaseAttention
from dovetail.layers.attention.kv_cache import (
    ContiguousKVCache,
    KeyValues,
    KVCache,
    NoKVCache,
    UncachedKV,
)
from dovetail.layers.attention.mixing import Mixing
from dovetail.layers.attention.scores import Scores
from dovetail.layers.context import TokenContext
from dovetail.layers.decoder import Decoder
from dovetail.layers.dropout import Dropout
from dovetail.layers.embedding import Embedding
from dovetail.layers.feed_forward import BaseFeedForward, FeedForward
from dovetail.layers.interfaces import (
    HasDecodingForm,
    HasLowRankUpdate,
    HasOutputNorm,
    Layer,
    LowRankUpdate,
    Mergeable,
    PrecisionSensitive,
    Residual,
    SequenceMixer,
    TokenMap,
    TrainingCache,
    Vocabulary,
)
from dovetail.layers.linear.linear import Linear
from dovetail.layers.loss.base import BaseLoss, Logits, TokenLoss
from dovetail.layers.loss.next_token import NextTokenLoss
from dovetail.layers.norms import BaseNorm, RMSNorm
from dovetail.layers.positions.base import (
    BaseInputPositions,
    BasePositions,
    NoInputPositions,
    NoPositions,
)
from dovetail.layers.residual import BaseResidual, PreNorm, constrain_residual
from dovetail.layers.stack.blocks import TransformerBlock
from dovetail.layers.stack.stack import (
    Identity,
    Pattern,
    Stack,
    arrange,
    last_layer,
    layers_of,
    rearrange,
)
from dovetail.layers.stack.stages import LAYER_AXES, in_stages

import_submodules(__name__)  # registers every layer, so config text can name it

__all__ = [
    "LAYER_AXES",
    "Attention",
    "BaseAttention",
    "BaseFeedForward",
    "BaseInputPositions",
    "BaseLoss",
    "BaseNorm",
    "BasePositions",
    "BaseResidual",
    "ContiguousKVCache",
    "Decoder",
    "Dropout",
    "Embedding",
    "FeedForward",
    "HasDecodingForm",
    "HasLowRankUpdate",
    "HasOutputNorm",
    "Identity",
    "KVCache",
    "KeyValues",
    "Layer",
    "Linear",
    "Logits",
    "LowRankUpdate",
    "Mergeable",
    "Mixing",
    "NextTokenLoss",
    "NoInputPositions",
    "NoKVCache",
    "NoPositions",
    "Pattern",
    "PreNorm",
    "PrecisionSensitive",
    "RMSNorm",
    "Residual",
    "Scores",
    "SequenceMixer",
    "Stack",
    "TokenContext",
    "TokenLoss",
    "TokenMap",
    "TrainingCache",
    "TransformerBlock",
    "UncachedKV",
    "Vocabulary",
    "arrange",
    "constrain_residual",
    "in_stages",
    "last_layer",
    "layers_of",
    "rearrange",
]
