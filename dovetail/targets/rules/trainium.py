"""Trainium: a chip is several JAX devices, which share its HBM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.targets.fitting import choose_mesh, fit_experiment
from dovetail.targets.machine import Machine
from dovetail.targets.rule import target_rule
from dovetail.targets.size import config_size

if TYPE_CHECKING:
    from dovetail.trainer import Trainer


@target_rule("trainium", "trn*")
def trainium(config: Trainer.Config, machine: Machine) -> Trainer.Config:
    """Tensor parallelism over the devices of a chip; the batch is sharded over chips."""
    size = config_size(config)
    mesh = choose_mesh(size, machine, model=machine.chip.devices_per_chip)
    return fit_experiment(config, size, machine, mesh)
