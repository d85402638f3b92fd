"""NVIDIA's data-centre GPUs.

The figures are those commonly quoted from NVIDIA's data sheets (A100, H100, H200, HGX B200). They
were not checked against the sheets themselves, least of all the B200's: check before relying on
them. The sheets print rates with sparsity; here are the dense ones, half of those.
float32 is the TF32 rate, which JAX's default precision uses. Memory is in decimal gigabytes.
"""

from __future__ import annotations

from dovetail.hardware.chip import Chip, peak_rates

_TERA = 1e12
_GIGA = 1e9

_A100 = peak_rates(312 * _TERA, float32=156 * _TERA, int8=624 * _TERA)
_H100_SXM = peak_rates(
    989.4 * _TERA, float32=494.7 * _TERA, float8=1978.9 * _TERA, int8=1978.9 * _TERA
)

GPUS = (
    Chip(
        name="nvidia-a100-40gb",
        kind="gpu",
        device_kinds=("NVIDIA A100-SXM4-40GB",),
        peak_flops=_A100,
        memory_bytes=40 * _GIGA,
        memory_bandwidth=1555 * _GIGA,
        links=12,
        link_bandwidth=25 * _GIGA,
    ),
    Chip(
        name="nvidia-a100-80gb",
        kind="gpu",
        device_kinds=("NVIDIA A100-SXM4-80GB",),
        peak_flops=_A100,
        memory_bytes=80 * _GIGA,
        memory_bandwidth=2039 * _GIGA,
        links=12,
        link_bandwidth=25 * _GIGA,
    ),
    Chip(
        name="nvidia-h100",
        kind="gpu",
        device_kinds=("NVIDIA H100 80GB HBM3",),
        peak_flops=_H100_SXM,
        memory_bytes=80 * _GIGA,
        memory_bandwidth=3350 * _GIGA,
        links=18,
        link_bandwidth=25 * _GIGA,
    ),
    # The card for PCIe slots is slower, and an NVLink bridge joins two of them at most.
    Chip(
        name="nvidia-h100-pcie",
        kind="gpu",
        device_kinds=("NVIDIA H100 PCIe",),
        peak_flops=peak_rates(
            756 * _TERA, float32=378 * _TERA, float8=1513 * _TERA, int8=1513 * _TERA
        ),
        memory_bytes=80 * _GIGA,
        memory_bandwidth=2000 * _GIGA,
        links=12,
        link_bandwidth=25 * _GIGA,
    ),
    Chip(
        name="nvidia-h200",
        kind="gpu",
        device_kinds=("NVIDIA H200",),
        peak_flops=_H100_SXM,
        memory_bytes=141 * _GIGA,
        memory_bandwidth=4800 * _GIGA,
        links=18,
        link_bandwidth=25 * _GIGA,
    ),
    Chip(
        name="nvidia-b200",
        kind="gpu",
        device_kinds=("NVIDIA B200",),
        peak_flops=peak_rates(
            2250 * _TERA, float32=1100 * _TERA, float8=4500 * _TERA, int8=4500 * _TERA
        ),
        memory_bytes=180 * _GIGA,
        memory_bandwidth=8000 * _GIGA,
        links=18,
        link_bandwidth=50 * _GIGA,
    ),
)
