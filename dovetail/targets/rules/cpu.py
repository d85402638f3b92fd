"""CPUs: one host, whose virtual devices share its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.targets.machine import Machine
from dovetail.targets.rule import target_rule

if TYPE_CHECKING:
    from dovetail.trainer import Trainer


@target_rule("cpu", "cpu*")
def cpu(config: Trainer.Config, machine: Machine) -> Trainer.Config:
    """FSDP over all devices; nothing else changes."""
    from dovetail.parallel import MeshLayout

    config.mesh = MeshLayout.Config()
    return config
