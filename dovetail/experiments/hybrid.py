"""A hybrid for a laptop: the model of the quick start, with recurrent layers beside attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.config import apply_modifier
from dovetail.experiments.registry import experiment, find_experiment

if TYPE_CHECKING:
    from dovetail.trainer import Trainer

_EVERY_OTHER = "mamba2:every=2"


def _tiny_form() -> Trainer.Config:
    config: Trainer.Config = apply_modifier(find_experiment("tiny-lm").tiny(), _EVERY_OTHER)
    return config


@experiment("tiny-hybrid", "tiny-lm, with every other layer recurrent (Mamba-2)", tiny=_tiny_form)
def tiny_hybrid() -> Trainer.Config:
    """Returns the experiment."""
    config: Trainer.Config = apply_modifier(find_experiment("tiny-lm").config(), _EVERY_OTHER)
    return config
