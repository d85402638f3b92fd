"""TPU pods: ICI joins all chips of a slice, and the DCN joins slices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.targets.fitting import choose_mesh, fit_experiment
from dovetail.targets.machine import Machine
from dovetail.targets.rule import target_rule
from dovetail.targets.size import config_size

if TYPE_CHECKING:
    from dovetail.trainer import Trainer


@target_rule("tpu-pod", "tpu-*")
def tpu_pod(config: Trainer.Config, machine: Machine) -> Trainer.Config:
    """FSDP over a part of each slice or all of it; the batch over all devices."""
    size = config_size(config)
    return fit_experiment(config, size, machine, choose_mesh(size, machine))
