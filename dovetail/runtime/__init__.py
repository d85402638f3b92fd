"""The runtime of a run: checkpoints, faults, the supervisor, the run folder, metrics writers.

Names are imported at their first use: the supervisor imports no JAX.
"""

from typing import TYPE_CHECKING

from dovetail.utils.lazy import lazy_names

if TYPE_CHECKING:
    from dovetail.runtime.agreement import (
        Agreement,
        AgreementError,
        leave_together,
        open_agreement,
    )
    from dovetail.runtime.checkpoints.checkpointer import Checkpointer, abstract_state
    from dovetail.runtime.checkpoints.folders import StepFolders
    from dovetail.runtime.checkpoints.objects.store import ObjectStore
    from dovetail.runtime.checkpoints.stores import CheckpointStore, RunFolderStore
    from dovetail.runtime.compilation_cache import count_cache_hits, use_compilation_cache
    from dovetail.runtime.console import Console
    from dovetail.runtime.cpu import measured_cpu
    from dovetail.runtime.digest import Digest, digests, host_device, read_digests
    from dovetail.runtime.doctor import MachineReport, examine_machine
    from dovetail.runtime.failures import (
        BadPathError,
        Failure,
        explain_backend_failure,
        explain_failure,
        explained_failures,
        message_line,
    )
    from dovetail.runtime.fault_policies import ReplayFaults, SkipSpikes, StopOnFaults
    from dovetail.runtime.faults import (
        BadState,
        Continue,
        CorruptResult,
        FailedSave,
        FaultAction,
        FaultEvent,
        FaultLog,
        FaultPolicy,
        NonFiniteStep,
        RollBack,
        Skips,
        StepEnd,
        Stop,
    )
    from dovetail.runtime.flops import matmul_flops_by_dtype, matmul_flops_of
    from dovetail.runtime.goodput.account import Goodput
    from dovetail.runtime.heartbeat import Heartbeat
    from dovetail.runtime.lives import FencedError, Life, suspects, take_life
    from dovetail.runtime.peak_memory import PeakGrowth, peak_memory_bytes
    from dovetail.runtime.phases import Phases
    from dovetail.runtime.points import pass_through, reach
    from dovetail.runtime.preemption import MetadataServer, StopFile, StopNotice
    from dovetail.runtime.profiler import Profiler
    from dovetail.runtime.run_folder import RunFolder, folder_error, short_hash
    from dovetail.runtime.safetensors import (
        SafetensorsWriter,
        TensorInfo,
        can_store,
        read_header,
        verify_tensor,
    )
    from dovetail.runtime.sdc.preflight import Preflight, SkipPreflight
    from dovetail.runtime.sdc.repeat_steps import RepeatSteps
    from dovetail.runtime.signals import StopRequest
    from dovetail.runtime.stragglers import Stragglers
    from dovetail.runtime.supervisor import Supervisor, SupervisorSettings
    from dovetail.runtime.weights import ArraySpecs, StoredWeights
    from dovetail.runtime.writers import (
        BackgroundWriter,
        JsonLines,
        Metrics,
        MetricsWriter,
        OpenMetrics,
        TensorBoard,
        WandB,
        read_metrics,
    )

_MODULES = {
    "dovetail.runtime.agreement": (
        "Agreement",
        "AgreementError",
        "leave_together",
        "open_agreement",
    ),
    "dovetail.runtime.checkpoints.checkpointer": ("Checkpointer", "abstract_state"),
    "dovetail.runtime.checkpoints.folders": ("StepFolders",),
    "dovetail.runtime.checkpoints.objects.store": ("ObjectStore",),
    "dovetail.runtime.checkpoints.stores": ("CheckpointStore", "RunFolderStore"),
    "dovetail.runtime.compilation_cache": ("count_cache_hits", "use_compilation_cache"),
    "dovetail.runtime.console": ("Console",),
    "dovetail.runtime.cpu": ("measured_cpu",),
    "dovetail.runtime.digest": ("Digest", "digests", "host_device", "read_digests"),
    "dovetail.runtime.doctor": ("MachineReport", "examine_machine"),
    "dovetail.runtime.failures": (
        "BadPathError",
        "Failure",
        "explain_backend_failure",
        "explain_failure",
        "explained_failures",
        "message_line",
    ),
    "dovetail.runtime.fault_policies": ("ReplayFaults", "SkipSpikes", "StopOnFaults"),
    "dovetail.runtime.faults": (
        "BadState",
        "Continue",
        "CorruptResult",
        "FailedSave",
        "FaultAction",
        "FaultEvent",
        "FaultLog",
        "FaultPolicy",
        "NonFiniteStep",
        "RollBack",
        "Skips",
        "StepEnd",
        "Stop",
    ),
    "dovetail.runtime.flops": ("matmul_flops_by_dtype", "matmul_flops_of"),
    "dovetail.runtime.goodput.account": ("Goodput",),
    "dovetail.runtime.heartbeat": ("Heartbeat",),
    "dovetail.runtime.lives": ("FencedError", "Life", "suspects", "take_life"),
    "dovetail.runtime.peak_memory": ("PeakGrowth", "peak_memory_bytes"),
    "dovetail.runtime.phases": ("Phases",),
    "dovetail.runtime.points": ("pass_through", "reach"),
    "dovetail.runtime.preemption": ("MetadataServer", "StopFile", "StopNotice"),
    "dovetail.runtime.profiler": ("Profiler",),
    "dovetail.runtime.run_folder": ("RunFolder", "folder_error", "short_hash"),
    "dovetail.runtime.safetensors": (
        "SafetensorsWriter",
        "TensorInfo",
        "can_store",
        "read_header",
        "verify_tensor",
    ),
    "dovetail.runtime.sdc.preflight": ("Preflight", "SkipPreflight"),
    "dovetail.runtime.sdc.repeat_steps": ("RepeatSteps",),
    "dovetail.runtime.signals": ("StopRequest",),
    "dovetail.runtime.stragglers": ("Stragglers",),
    "dovetail.runtime.supervisor": ("Supervisor", "SupervisorSettings"),
    "dovetail.runtime.weights": ("ArraySpecs", "StoredWeights"),
    "dovetail.runtime.writers": (
        "BackgroundWriter",
        "JsonLines",
        "Metrics",
        "MetricsWriter",
        "OpenMetrics",
        "TensorBoard",
        "WandB",
        "read_metrics",
    ),
}

__getattr__, __dir__ = lazy_names(__name__, _MODULES)

__all__ = [
    "Agreement",
    "AgreementError",
    "ArraySpecs",
    "BackgroundWriter",
    "BadPathError",
    "BadState",
    "CheckpointStore",
    "Checkpointer",
    "Console",
    "Continue",
    "CorruptResult",
    "Digest",
    "FailedSave",
    "Failure",
    "FaultAction",
    "FaultEvent",
    "FaultLog",
    "FaultPolicy",
    "FencedError",
    "Goodput",
    "Heartbeat",
    "JsonLines",
    "Life",
    "MachineReport",
    "MetadataServer",
    "Metrics",
    "MetricsWriter",
    "NonFiniteStep",
    "ObjectStore",
    "OpenMetrics",
    "PeakGrowth",
    "Phases",
    "Preflight",
    "Profiler",
    "RepeatSteps",
    "ReplayFaults",
    "RollBack",
    "RunFolder",
    "RunFolderStore",
    "SafetensorsWriter",
    "SkipPreflight",
    "SkipSpikes",
    "Skips",
    "StepEnd",
    "StepFolders",
    "Stop",
    "StopFile",
    "StopNotice",
    "StopOnFaults",
    "StopRequest",
    "StoredWeights",
    "Stragglers",
    "Supervisor",
    "SupervisorSettings",
    "TensorBoard",
    "TensorInfo",
    "WandB",
    "abstract_state",
    "can_store",
    "count_cache_hits",
    "digests",
    "examine_machine",
    "explain_backend_failure",
    "explain_failure",
    "explained_failures",
    "folder_error",
    "host_device",
    "leave_together",
    "matmul_flops_by_dtype",
    "matmul_flops_of",
    "measured_cpu",
    "message_line",
    "open_agreement",
    "pass_through",
    "peak_memory_bytes",
    "reach",
    "read_digests",
    "read_header",
    "read_metrics",
    "short_hash",
    "suspects",
    "take_life",
    "use_compilation_cache",
    "verify_tensor",
]
