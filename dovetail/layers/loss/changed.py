"""Losses that change one thing about another, so that changes add up in any order."""

from __future__ import annotations

from dovetail.config import REQUIRED, ConfigOf, wraps
from dovetail.layers.loss.next_token import AnyLoss, NextTokenLoss
from dovetail.module import Batch


class ChangedLoss(AnyLoss):
    """A loss around another.

    One that gives tokens other weights says so in `counted`. One that adds a term takes the weights
    from there, and adds it in training only: what is held out is judged by the loss itself.
    """

    class Config(AnyLoss.Config):
        """What is changed. The sizes are set by the model."""

        vocab_size: int = REQUIRED
        width: int = REQUIRED
        base: ConfigOf[AnyLoss] = wraps(NextTokenLoss.Config())

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        known = [name for name in ("vocab_size", "width") if name in config.base.fields()]
        self.base = config.base.build(**{name: getattr(config, name) for name in known})

    def counted(self, batch: Batch) -> Batch:
        """Returns the batch with the weights that this loss gives its tokens."""
        return self.base.counted(batch)
