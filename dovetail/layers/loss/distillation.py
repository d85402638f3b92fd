"""Distillation: a model learns what another one thinks of every token, not only which is right.

B batch, S sequence, L tokens of a chunk, E embed, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigError, ConfigOf, apart
from dovetail.config import Config as AnyConfig
from dovetail.kernels.cross_entropy import ScoreMap
from dovetail.layers.interfaces import Array
from dovetail.layers.loss.changed import ChangedLoss
from dovetail.layers.loss.chunks import sum_over_chunks
from dovetail.module import Batch, evaluated

Scoring = tuple[jax.Array, jax.Array, ScoreMap | None]


class Teacher(Protocol):
    """A model that scores next tokens."""

    def scoring(self, batch: Batch, /) -> Scoring:
        """Returns what the scores are made of: vectors [B, S, E], a table [V, E], and a map."""
        ...


class DistillationLoss(ChangedLoss):
    """Adds how far the model's shares are from a teacher's (https://arxiv.org/abs/1503.02531).

    It is the divergence KL(teacher, model) of both softmaxes, with scores divided by a temperature,
    times the temperature's square. The teacher runs as in evaluation, and in training only. It is
    not trained: whoever puts it here freezes its parameters, which are `loss/teacher/...`.
    """

    class Config(ChangedLoss.Config):
        """The teacher, how much it counts beside the loss itself, and how much is smoothed."""

        teacher: ConfigOf[Teacher] = apart()
        weight: float = 1.0
        temperature: float = 1.0

        def for_decoding(self) -> AnyConfig[Any]:
            """Returns the loss without a teacher, which decoding does not need."""
            return self.base

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        for name in ("temperature", "weight"):
            if not (value := getattr(config, name)) > 0:
                raise ConfigError(f"{config.locate(name)}: expected above 0, got {value}.")
        self.weight, self.temperature = config.weight, config.temperature
        teacher: Any = config.teacher
        # As the trainer does it for the model: a size that only the tokenizer knows.
        is_open = teacher.fields().get("vocab_size") and teacher.vocab_size is REQUIRED
        self.teacher = (teacher.clone(vocab_size=config.vocab_size) if is_open else teacher).build()

    def __call__(
        self,
        x_BSE: jax.Array,
        weight_VE: jax.Array,
        batch: Batch,
        logit_map: ScoreMap | None = None,
    ) -> None:
        """Adds the loss itself, and in training the divergence from the teacher."""
        self.base(x_BSE, weight_VE, batch, logit_map)
        if not self.training:
            return
        theirs = evaluated(self.teacher.scoring, batch)
        if theirs[1].shape[0] != weight_VE.shape[0]:
            raise ConfigError(
                f"{self.config.locate('teacher')}: it knows {theirs[1].shape[0]} tokens, and the "
                f"model {weight_VE.shape[0]}. A teacher must have the vocabulary of its student."
            )
        weights_BS = self.counted(batch).loss_weights
        total = _divergence(theirs, (x_BSE, weight_VE, logit_map), weights_BS, self.temperature)
        self.add_loss("distillation", self.weight * total, weights_BS.sum())

    def merged(self, name: str, value: Array, own: Mapping[str, Array]) -> Array:
        """Returns the parameter as it is: what is exported is the model alone."""
        return value


def _divergence(
    teacher: Scoring, student: Scoring, weights_BS: jax.Array, temperature: float
) -> jax.Array:
    """Sums the divergence over tokens; only a chunk's scores are there at a time."""
    x_BSE, weight_VE, logit_map = teacher
    x_BSE, weight_VE = jax.lax.stop_gradient((x_BSE, weight_VE))

    def divergence(theirs_BLE: jax.Array, mine_BLE: jax.Array, weights_BL: jax.Array) -> jax.Array:
        theirs_BLV = _log_shares(theirs_BLE, weight_VE, logit_map, temperature)
        mine_BLV = _log_shares(mine_BLE, *student[1:], temperature)
        apart_BL = (jnp.exp(theirs_BLV) * (theirs_BLV - mine_BLV)).sum(axis=-1)
        return temperature**2 * (weights_BL * apart_BL).sum()

    return sum_over_chunks(divergence, x_BSE, student[0], weights_BS)


def _log_shares(
    x_BLE: jax.Array, weight_VE: jax.Array, logit_map: ScoreMap | None, temperature: float
) -> jax.Array:
    scores_BLV = jnp.einsum("ble,ve->blv", x_BLE, weight_VE, preferred_element_type=jnp.float32)
    scores_BLV = scores_BLV if logit_map is None else logit_map(scores_BLV)
    return jax.nn.log_softmax(scores_BLV / temperature)
