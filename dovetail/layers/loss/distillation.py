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
from dovetail.layers.interfaces import Array
from dovetail.layers.loss.changed import ChangedLoss
from dovetail.layers.loss.chunks import sum_over_chunks
from dovetail.layers.loss.next_token import Logits
from dovetail.module import Batch, evaluated


class Teacher(Protocol):
    """A model that scores next tokens."""

    def scoring(self, batch: Batch, /) -> Logits:
        """Returns the scores of all next tokens."""
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

    def __call__(self, logits: Logits, batch: Batch) -> None:
        """Adds the loss itself, and in training the divergence from the teacher."""
        self.base(logits, batch)
        if not self.training:
            return
        theirs = evaluated(self.teacher.scoring, batch)
        known, wanted = theirs.weight_VE.shape[0], logits.weight_VE.shape[0]
        if known != wanted:
            raise ConfigError(
                f"{self.config.locate('teacher')}: it knows {known} tokens, and the model {wanted}."
                " A teacher must have the vocabulary of its student."
            )
        weights_BS = self.counted(batch).loss_weights
        total = _divergence(theirs, logits, weights_BS, self.temperature)
        self.add_loss("distillation", self.weight * total, weights_BS.sum())

    def merged(self, name: str, value: Array, own: Mapping[str, Array]) -> Array:
        """Returns the parameter as it is: what is exported is the model alone."""
        return value


def _divergence(
    teacher: Logits, student: Logits, weights_BS: jax.Array, temperature: float
) -> jax.Array:
    """Sums the divergence over tokens; only a chunk's scores are there at a time."""
    fixed = jax.lax.stop_gradient((teacher.x_BSE, teacher.weight_VE))
    teacher = Logits(*fixed, teacher.bound)

    def divergence(theirs_BLE: jax.Array, mine_BLE: jax.Array, weights_BL: jax.Array) -> jax.Array:
        theirs_BLV = jax.nn.log_softmax(teacher.of(theirs_BLE) / temperature)
        mine_BLV = jax.nn.log_softmax(student.of(mine_BLE) / temperature)
        apart_BL = (jnp.exp(theirs_BLV) * (theirs_BLV - mine_BLV)).sum(axis=-1)
        return temperature**2 * (weights_BL * apart_BL).sum()

    return sum_over_chunks(divergence, teacher.x_BSE, student.x_BSE, weights_BS)
