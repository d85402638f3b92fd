"""The runtime of a run: checkpoints, stop signals, the run folder, metrics writers."""

from dovetail.runtime.checkpointer import Checkpointer, abstract_state
from dovetail.runtime.compilation_cache import count_cache_hits, use_compilation_cache
from dovetail.runtime.console import Console
from dovetail.runtime.cpu import measured_cpu
from dovetail.runtime.faults import (
    Continue,
    FaultAction,
    FaultEvent,
    FaultLog,
    FaultPolicy,
    NonFiniteStep,
    RollBack,
    StepEnd,
    Stop,
    StopOnFaults,
)
from dovetail.runtime.flops import matmul_flops_by_dtype, matmul_flops_of
from dovetail.runtime.peak_memory import PeakGrowth, peak_memory_bytes
from dovetail.runtime.run_folder import RunFolder, short_hash
from dovetail.runtime.safetensors import SafetensorsWriter, TensorInfo, can_store, read_header
from dovetail.runtime.signals import StopRequest
from dovetail.runtime.weights import ArraySpecs, StoredWeights
from dovetail.runtime.writers import (
    JsonLines,
    Metrics,
    MetricsWriter,
    TensorBoard,
    read_metrics,
)

__all__ = [
    "ArraySpecs",
    "Checkpointer",
    "Console",
    "Continue",
    "FaultAction",
    "FaultEvent",
    "FaultLog",
    "FaultPolicy",
    "JsonLines",
    "Metrics",
    "MetricsWriter",
    "NonFiniteStep",
    "PeakGrowth",
    "RollBack",
    "RunFolder",
    "SafetensorsWriter",
    "StepEnd",
    "Stop",
    "StopOnFaults",
    "StopRequest",
    "StoredWeights",
    "TensorBoard",
    "TensorInfo",
    "abstract_state",
    "can_store",
    "count_cache_hits",
    "matmul_flops_by_dtype",
    "matmul_flops_of",
    "measured_cpu",
    "peak_memory_bytes",
    "read_header",
    "read_metrics",
    "short_hash",
    "use_compilation_cache",
]
