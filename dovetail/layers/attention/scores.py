"""Attention scores: soft cap, sinks, bias, and what replaces the softmax.

Each feature of the scores is a wrapper around another `Scores`, so features compose and attention
knows none of them by name.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import jax

from dovetail.config import REQUIRED, ConfigOf, wraps
from dovetail.kernels.attention import ScoreBias, ScoreMap, SoftCap
from dovetail.layers.checks import require_positive
from dovetail.module import Initializer, Module, Normal, parameter


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ScoreOptions:
    """The score arguments of the attention op; see `dovetail.kernels.attention.attention`."""

    sinks_H: jax.Array | None = None
    score_bias: ScoreBias | None = None  # may hold parameters of the module that sets it
    score_map: ScoreMap | None = dataclasses.field(default=None, metadata={"static": True})
    score_activation: ScoreMap | None = dataclasses.field(default=None, metadata={"static": True})

    def options(self) -> dict[str, Any]:
        """Returns them as keyword arguments."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


class Scores(Module):
    """A plain softmax; the innermost of the wrappers below."""

    class Config(Module.Config["Scores"]):
        """The number of heads is set by the parent."""

        num_heads: int = REQUIRED

    def __call__(self) -> ScoreOptions:
        """Returns the arguments of the op."""
        return ScoreOptions()


class ScoresWrapper(Scores):
    """Changes some options of the scores that it wraps."""

    class Config(Scores.Config):
        base: ConfigOf[Scores] = wraps(Scores.Config())

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.base = config.base.build(num_heads=config.num_heads)

    def __call__(self) -> ScoreOptions:
        """Returns the arguments of the op."""
        return dataclasses.replace(self.base(), **self.changes())

    def changes(self) -> dict[str, Any]:
        """Returns the fields of `ScoreOptions` to replace."""
        raise NotImplementedError


class PositionalScores(ScoresWrapper):
    """A position encoding by score bias; it excludes other position encodings."""


class SoftmaxWrapper(ScoresWrapper):
    """A wrapper that needs the softmax."""


class SoftmaxFree(ScoresWrapper):
    """A wrapper that replaces the softmax."""


class SoftCappedScores(ScoresWrapper):
    """Soft-capped scores: cap * tanh(score / cap) (Gemma 2, https://arxiv.org/abs/2408.00118)."""

    class Config(ScoresWrapper.Config):
        """Scores are between -cap and cap."""

        cap: float = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.score_map = SoftCap(config.cap)

    def changes(self) -> dict[str, Any]:
        """Sets the soft cap."""
        return {"score_map": self.score_map}


class LearnedSinks(SoftmaxWrapper):
    """Attention sinks: a learned logit per head (gpt-oss; https://arxiv.org/abs/2309.17453)."""

    class Config(SoftmaxWrapper.Config):
        weight_init: ConfigOf[Initializer] = Normal.Config(standard_deviation=0.02)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.sinks = parameter((config.num_heads,), ("heads",), config.weight_init, decays=False)

    def changes(self) -> dict[str, Any]:
        """Adds the sink logits to the softmax."""
        return {"sinks_H": self.sinks}


@dataclass(frozen=True)
class BiasedSigmoid(ScoreMap):
    """sigmoid(score + bias)."""

    bias: float

    def __call__(self, scores: jax.Array, /) -> jax.Array:
        """Returns weights between 0 and 1."""
        return jax.nn.sigmoid(scores + self.bias)


class SigmoidAttention(SoftmaxFree):
    """Sigmoid attention: an elementwise sigmoid replaces the softmax (https://arxiv.org/abs/2409.04431).

    The bias is -log(length): at initialization the weights of a sequence sum to about 1, as those
    of a softmax do.
    """

    class Config(SoftmaxFree.Config):
        """The sequence length of training, which sets the bias."""

        length: int = 2048

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "length")
        self.score_activation = BiasedSigmoid(-math.log(config.length))

    def changes(self) -> dict[str, Any]:
        """Replaces the softmax."""
        return {"score_activation": self.score_activation}
