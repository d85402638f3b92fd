"""What keeps a run alive and tells about it: checkpoints, signals, run folders, writers."""

from dovetail.hardware import MFU_FORMULA
from dovetail.runtime.checkpointer import Checkpointer, abstract_state
from dovetail.runtime.compilation_cache import use_compilation_cache
from dovetail.runtime.console import Console
from dovetail.runtime.flops import matmul_flops_by_type, matmul_flops_of
from dovetail.runtime.memory import PeakGrowth, peak_memory_bytes
from dovetail.runtime.run_folder import RunFolder, short_hash
from dovetail.runtime.safetensors import Entry, SafetensorsWriter, can_store, read_header
from dovetail.runtime.signals import StopRequest
from dovetail.runtime.weights import StoredWeights, has_parameters, read_parameters
from dovetail.runtime.writers import Figures, JsonLines, TensorBoard, Writer

__all__ = [
    "MFU_FORMULA",
    "Checkpointer",
    "Console",
    "Entry",
    "Figures",
    "JsonLines",
    "PeakGrowth",
    "RunFolder",
    "SafetensorsWriter",
    "StopRequest",
    "StoredWeights",
    "TensorBoard",
    "Writer",
    "abstract_state",
    "can_store",
    "has_parameters",
    "matmul_flops_by_type",
    "matmul_flops_of",
    "peak_memory_bytes",
    "read_header",
    "read_parameters",
    "short_hash",
    "use_compilation_cache",
]
