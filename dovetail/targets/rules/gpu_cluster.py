"""GPU clusters: hosts of a few GPUs joined by NVLink, and a slower network between hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.targets.fitting import apply_fit, fit_mesh
from dovetail.targets.machine import Machine
from dovetail.targets.registry import target_rule
from dovetail.targets.size import weigh

if TYPE_CHECKING:
    from dovetail.trainer import Trainer

# From here on a layer is so wide that its products can be shared by the GPUs of a host, which
# divides what must be gathered over the network. By active parameters: experts are narrow.
_VERY_BIG = 30e9
_SHARED_BY = 8


@target_rule("gpu-cluster", "gpu-*")
def gpu_cluster(config: Trainer.Config, machine: Machine) -> Trainer.Config:
    """As on TPUs; the layers of very big models are shared by eight GPUs that NVLink joins."""
    size = weigh(config)
    joined = min(_SHARED_BY, machine.chip.linked_chips, machine.devices_per_slice)
    model = joined if size.active_parameters >= _VERY_BIG else 1
    result: Trainer.Config = apply_fit(config, size, machine, fit_mesh(size, machine, model))
    return result
