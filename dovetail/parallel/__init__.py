"""Parallelism: meshes, logical-axis rules, constraints and rematerialisation. Knows no model."""

from dovetail.parallel.constraints import (
    Activation,
    Placement,
    constrain,
    current_placement,
    note_activation,
    placed,
    watch_activations,
)
from dovetail.parallel.distributed import Processes, start_distributed
from dovetail.parallel.memory import DeviceMemory, HostMemory, Memory
from dovetail.parallel.mesh import MESH_AXES, MeshLayout, steps_ahead
from dovetail.parallel.remat import (
    KeepAll,
    KeepDots,
    KeepNothing,
    KeepTags,
    OffloadTags,
    Remat,
    gather_again,
    note_tag,
    tag,
)
from dovetail.parallel.rules import AnyMesh, AxisRules
from dovetail.parallel.schedules import Rounds
from dovetail.parallel.vote import Vote

__all__ = [
    "MESH_AXES",
    "Activation",
    "AnyMesh",
    "AxisRules",
    "DeviceMemory",
    "HostMemory",
    "KeepAll",
    "KeepDots",
    "KeepNothing",
    "KeepTags",
    "Memory",
    "MeshLayout",
    "OffloadTags",
    "Placement",
    "Processes",
    "Remat",
    "Rounds",
    "Vote",
    "constrain",
    "current_placement",
    "gather_again",
    "note_activation",
    "note_tag",
    "placed",
    "start_distributed",
    "steps_ahead",
    "tag",
    "watch_activations",
]
