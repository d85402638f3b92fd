"""Trainium: every chip is several devices, which share its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.targets.fitting import apply_fit, fit_mesh
from dovetail.targets.machine import Machine
from dovetail.targets.registry import target_rule
from dovetail.targets.size import weigh

if TYPE_CHECKING:
    from dovetail.trainer import Trainer


@target_rule("trainium", "trn*")
def trainium(config: Trainer.Config, machine: Machine) -> Trainer.Config:
    """The devices of a chip share each layer, so that chips are what the batch is split over."""
    size = weigh(config)
    fit = fit_mesh(size, machine, model=machine.chip.devices_per_chip)
    result: Trainer.Config = apply_fit(config, size, machine, fit)
    return result
