"""Scores: how attention turns the fit of a query and a key into the weight of the key.

A feature of attention that concerns scores is a part of its own, which wraps another: so features
add up, and attention knows none of them by name.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax

from dovetail.config import REQUIRED, ConfigOf, wraps
from dovetail.kernels.attention import ScoreBias, ScoreMap
from dovetail.module import Module


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Scoring:
    """What the attention op is told of scores; see `dovetail.kernels.attention.attention`."""

    sinks_H: jax.Array | None = None
    score_map: ScoreMap | None = dataclasses.field(default=None, metadata={"static": True})
    score_bias: ScoreBias | None = dataclasses.field(default=None, metadata={"static": True})
    weigh: ScoreMap | None = dataclasses.field(default=None, metadata={"static": True})

    def options(self) -> dict[str, Any]:
        """Returns them as arguments of the op."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


class Scores(Module):
    """A softmax over plain scores; what the others begin from."""

    class Config(Module.Config["Scores"]):
        """The number of heads is set by the parent."""

        num_heads: int = REQUIRED

    def __call__(self) -> Scoring:
        """Returns what the op is told."""
        return Scoring()


class ChangedScores(Scores):
    """Scores that change one thing about others."""

    class Config(Scores.Config):
        """What is changed."""

        base: ConfigOf[Scores] = wraps(Scores.Config())

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.base = config.base.build(num_heads=config.num_heads)

    def __call__(self) -> Scoring:
        """Returns what the op is told."""
        return dataclasses.replace(self.base(), **self.changes())

    def changes(self) -> dict[str, Any]:
        """Returns the fields of `Scoring` that differ."""
        raise NotImplementedError


class PositionedScores(ChangedScores):
    """Scores that know positions: a model that is told of them otherwise goes without these."""


class ChangedSoftmax(ChangedScores):
    """Scores that change the softmax, and so need one."""


class SoftmaxFree(ChangedScores):
    """Scores that become weights without a softmax."""
