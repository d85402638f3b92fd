"""GPU clusters: hosts of a few GPUs joined by NVLink, and a slower network between hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.targets.fitting import choose_mesh, fit_experiment
from dovetail.targets.machine import Machine
from dovetail.targets.rule import target_rule
from dovetail.targets.size import config_size

if TYPE_CHECKING:
    from dovetail.trainer import Trainer

# From this number of active parameters on, layers are wide enough for tensor parallelism over the
# GPUs of a host, which divides what FSDP gathers over the network. Experts are narrow.
_TENSOR_PARALLEL_FROM = 30e9
_TENSOR_PARALLELISM = 8


@target_rule("gpu-cluster", "gpu-*")
def gpu_cluster(config: Trainer.Config, machine: Machine) -> Trainer.Config:
    """As on TPUs; very big models have tensor parallelism over eight GPUs that NVLink joins."""
    size = config_size(config)
    joined = min(_TENSOR_PARALLELISM, machine.chip.linked_chips, machine.devices_per_slice)
    model = joined if size.active_parameters >= _TENSOR_PARALLEL_FROM else 1
    return fit_experiment(config, size, machine, choose_mesh(size, machine, model))
