"""Parallelism: meshes, logical-axis rules, constraints and rematerialisation. Knows no model."""

from dovetail.parallel.consensus import HostConsensus
from dovetail.parallel.constraints import (
    Activation,
    Placement,
    capture_activations,
    constrain,
    current_placement,
    record_activation,
    use_placement,
)
from dovetail.parallel.distributed import (
    Processes,
    leave_alone_on_error,
    leave_distributed,
    start_distributed,
)
from dovetail.parallel.host_offload import DeviceMemory, HostMemory, MemorySpace
from dovetail.parallel.mesh import MESH_AXES, MeshLayout, max_steps_in_flight
from dovetail.parallel.pipeline_schedule import PipelineSchedule
from dovetail.parallel.remat import (
    OffloadNamed,
    Remat,
    SaveAll,
    SaveDots,
    SaveNamed,
    SaveNothing,
    record_tag,
    remat_all_gathers,
    remat_name,
    tag,
)
from dovetail.parallel.rules import AnyMesh, AxisRules

__all__ = [
    "MESH_AXES",
    "Activation",
    "AnyMesh",
    "AxisRules",
    "DeviceMemory",
    "HostConsensus",
    "HostMemory",
    "MemorySpace",
    "MeshLayout",
    "OffloadNamed",
    "PipelineSchedule",
    "Placement",
    "Processes",
    "Remat",
    "SaveAll",
    "SaveDots",
    "SaveNamed",
    "SaveNothing",
    "capture_activations",
    "constrain",
    "current_placement",
    "leave_alone_on_error",
    "leave_distributed",
    "max_steps_in_flight",
    "record_activation",
    "record_tag",
    "remat_all_gathers",
    "remat_name",
    "start_distributed",
    "tag",
    "use_placement",
]
