"""Distillation: a student learns the output distribution of a teacher.

B batch, S sequence, L tokens of a chunk, E embed, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigError, ConfigOf, opaque
from dovetail.config import Config as AnyConfig
from dovetail.layers.interfaces import Array
from dovetail.layers.loss.base import Logits
from dovetail.layers.loss.chunks import sum_over_chunks
from dovetail.layers.loss.wrappers import LossWrapper
from dovetail.module import TokenBatch, run_in_eval_mode


class Teacher(Protocol):
    """A model that computes logits of next tokens."""

    def factored_logits(self, batch: TokenBatch, /) -> Logits:
        """Returns the logits of all next tokens."""
        ...


class DistillationLoss(LossWrapper):
    """Adds the KL divergence from a teacher (https://arxiv.org/abs/1503.02531).

    It is KL(teacher, student) of the softmaxes at a temperature, times the squared temperature. The
    teacher runs in eval mode, and in training only. It is not trained: the feature that adds it
    freezes its parameters, `loss/teacher/...`.
    """

    class Config(LossWrapper.Config):
        teacher: ConfigOf[Teacher] = opaque()
        weight: float = 1.0
        temperature: float = 1.0

        def for_decoding(self) -> AnyConfig[Any]:
            """Returns the loss without the teacher."""
            return self.base

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        for name in ("temperature", "weight"):
            if not (value := getattr(config, name)) > 0:
                raise ConfigError(f"{config.locate(name)}: expected above 0, got {value}.")
        self.weight, self.temperature = config.weight, config.temperature
        teacher: Any = config.teacher
        # The vocabulary size is known only with the tokenizer; the trainer sets it likewise.
        is_open = teacher.fields().get("vocab_size") and teacher.vocab_size is REQUIRED
        self.teacher = (teacher.clone(vocab_size=config.vocab_size) if is_open else teacher).build()

    def __call__(self, logits: Logits, batch: TokenBatch) -> None:
        """Adds the wrapped loss, and in training the KL divergence from the teacher."""
        self.base(logits, batch)
        if not self.training:
            return
        theirs = run_in_eval_mode(self.teacher.factored_logits, batch)
        known, wanted = theirs.weight_VE.shape[0], logits.weight_VE.shape[0]
        if known != wanted:
            raise ConfigError(
                f"{self.config.locate('teacher')}: its vocabulary has {known} tokens, and the "
                f"student's {wanted}. Teacher and student must have the same vocabulary."
            )
        weights_BS = self.reweight(batch).loss_weights
        total = _divergence(theirs, logits, weights_BS, self.temperature)
        self.add_loss("distillation", self.weight * total, weights_BS.sum())

    def merged(self, name: str, value: Array, own: Mapping[str, Array]) -> Array:
        """Returns the parameter unchanged: the teacher is not exported."""
        return value


def _divergence(
    teacher: Logits, student: Logits, weights_BS: jax.Array, temperature: float
) -> jax.Array:
    """Sums the KL divergence over tokens; only the logits of one chunk exist at a time."""
    fixed = jax.lax.stop_gradient((teacher.x_BSE, teacher.weight_VE))
    teacher = Logits(*fixed, teacher.logit_map)

    def divergence(
        teacher_BLE: jax.Array, student_BLE: jax.Array, weights_BL: jax.Array
    ) -> jax.Array:
        teacher_BLV = jax.nn.log_softmax(teacher.of(teacher_BLE) / temperature)
        student_BLV = jax.nn.log_softmax(student.of(student_BLE) / temperature)
        kl_BL = (jnp.exp(teacher_BLV) * (teacher_BLV - student_BLV)).sum(axis=-1)
        return temperature**2 * (weights_BL * kl_BL).sum()

    return sum_over_chunks(divergence, teacher.x_BSE, student.x_BSE, weights_BS)
