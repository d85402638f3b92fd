"""Hardware: what chips can do, as plain data. Importing it imports no JAX."""

from dovetail.hardware.catalogue import CHIPS, chip_for_device, chip_named
from dovetail.hardware.chip import PRECISIONS, SMALL_PRECISIONS, Chip, Price, precision_of
from dovetail.hardware.compilers import (
    GPU_FIGURES,
    can_compile_for,
    gpu_topology,
    tpu_topology,
)
from dovetail.hardware.cpu import (
    cpu_cores,
    cpu_model,
    machine_memory_bytes,
    measured_cpu,
    unmeasured_cpu,
)
from dovetail.hardware.files import user_cache_folder, write_whole
from dovetail.hardware.mfu import MFU_FORMULA

__all__ = [
    "CHIPS",
    "GPU_FIGURES",
    "MFU_FORMULA",
    "PRECISIONS",
    "SMALL_PRECISIONS",
    "Chip",
    "Price",
    "can_compile_for",
    "chip_for_device",
    "chip_named",
    "cpu_cores",
    "cpu_model",
    "gpu_topology",
    "machine_memory_bytes",
    "measured_cpu",
    "precision_of",
    "tpu_topology",
    "unmeasured_cpu",
    "user_cache_folder",
    "write_whole",
]
