"""TPU pods: links join all chips of a slice, so that nothing but slices is far away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.targets.fitting import apply_fit, fit_mesh
from dovetail.targets.machine import Machine
from dovetail.targets.registry import target_rule
from dovetail.targets.size import weigh

if TYPE_CHECKING:
    from dovetail.trainer import Trainer


@target_rule("tpu-pod", "tpu-*")
def tpu_pod(config: Trainer.Config, machine: Machine) -> Trainer.Config:
    """Parameters over a part of each slice or all of it; the batch over everything."""
    size = weigh(config)
    result: Trainer.Config = apply_fit(config, size, machine, fit_mesh(size, machine))
    return result
