"""Hardware: the specifications of chips, as plain data. Importing it loads no JAX."""

from dovetail.hardware.catalogue import CHIPS, chip_for_device, chip_named, cpu_chip
from dovetail.hardware.chip import (
    MFU_FORMULA,
    PRECISIONS,
    QUANTIZED_PRECISIONS,
    Chip,
    GpuSpec,
    Price,
    precision_of,
)

__all__ = [
    "CHIPS",
    "MFU_FORMULA",
    "PRECISIONS",
    "QUANTIZED_PRECISIONS",
    "Chip",
    "GpuSpec",
    "Price",
    "chip_for_device",
    "chip_named",
    "cpu_chip",
    "precision_of",
]
