"""Attention scores: QK-norm, soft caps, sinks and sigmoid attention."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "qk-norm",
    files=("layers/linear/linear.py:NormedLinear", "models/rotary.py:qk_norm_attention"),
    needs={
        "dovetail.layers:Attention": "there are no key projections to normalize (a latent vector "
        "has a norm already)"
    },
    excludes={"dovetail.layers.linear.linear:NormedLinear": "it applies only once"},
)
def qk_norm(config: Any) -> Any:
    """QK-norm: normalizes the queries and keys of each head.

    https://arxiv.org/abs/2302.05442
    """
    from dovetail.layers import Attention
    from dovetail.layers.linear.linear import NormedLinear

    def normed(old: Any) -> Any:
        width = old.head_width or config.model.width // old.num_heads
        query, key = (NormedLinear.Config(linear=m, group=width) for m in (old.query, old.key))
        return old.set(query=query, key=key)

    return replace(config, Attention, normed)


@feature(
    "soft-cap",
    files=("layers/attention/scores.py:SoftCappedScores",),
    needs={"dovetail.layers:Scores": "there are no attention scores to cap"},
    excludes={
        "dovetail.layers.attention.scores:SoftCappedScores": "set its cap with key.path=value"
    },
)
def soft_cap(config: Any, cap: float = 50.0) -> Any:
    """Soft cap: bounds attention scores by `cap * tanh(scores / cap)` (Gemma 2).

    https://arxiv.org/abs/2408.00118
    """
    from dovetail.layers import Scores
    from dovetail.layers.attention.scores import SoftCappedScores

    return replace(config, Scores, SoftCappedScores.Config(cap=cap))


@feature(
    "sinks",
    files=("layers/attention/scores.py:LearnedSinks",),
    needs={"dovetail.layers:Scores": "there are no scores to add a sink to"},
    excludes={
        "dovetail.layers.attention.scores:LearnedSinks": "it applies only once",
        "dovetail.layers.attention.scores:SoftmaxFree": "sinks need a softmax",
    },
)
def attention_sinks(config: Any) -> Any:
    """Attention sinks: a learned logit per head in the softmax's denominator.

    https://arxiv.org/abs/2309.17453
    """
    from dovetail.layers import Scores
    from dovetail.layers.attention.scores import LearnedSinks

    return replace(config, Scores, LearnedSinks.Config())


@feature(
    "sigmoid",
    files=(
        "layers/attention/scores.py:SigmoidAttention",
        "layers/attention/scores.py:BiasedSigmoid",
    ),
    needs={"dovetail.layers:Scores": "there are no attention scores"},
    excludes={
        "dovetail.layers.attention.scores:SoftmaxFree": "it has no softmax to replace",
        "dovetail.layers.attention.scores:SoftmaxWrapper": "it needs the softmax",
    },
)
def sigmoid_attention(config: Any, length: int | None = None) -> Any:
    """Sigmoid attention: a sigmoid of each score in place of the softmax.

    `length` sets the bias, by default to the training sequence length
    (https://arxiv.org/abs/2409.04431).
    """
    from dovetail.layers import Scores
    from dovetail.layers.attention.scores import SigmoidAttention

    length = config.input.sequence_length if length is None else length
    return replace(config, Scores, SigmoidAttention.Config(length=length))
