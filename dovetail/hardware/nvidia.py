"""NVIDIA data-center GPUs.

Data sheets print rates with sparsity; the dense rates here are half of those. float32 is the TF32
rate, which JAX's default precision uses.

Rates, memory, bandwidth and links of A100, B200 and GB200 were checked against notes that cite the
data sheets (https://glennklockwood.com/garden/processors/A100 and B200, which covers GB200), not
against the sheets themselves. The memory of GB200 is from CoreWeave's list. H100 and H200 are as
commonly quoted. The network is that of the priced offer where the provider states one (A100, H100,
H200). For B200 and GB200 it is one 400 Gb/s adapter per GPU, which was not checked.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail.hardware.chip import (
    GIB,
    GIGA,
    GIGABIT,
    KIB,
    MIB,
    TERA,
    Chip,
    GpuSpec,
    Price,
    peak_rates,
)

_HYPERSCALERS = (
    "https://raw.githubusercontent.com/datareceipts/data-receipts/main/109-gpu-pricing/"
    "hyperscalers.json"
)

# CoreWeave's own price page, as transcribed on the date of the price.
_TRANSCRIBED = (
    "https://raw.githubusercontent.com/api-evangelist/coreweave/refs/heads/main/plans/"
    "coreweave-plans-pricing.yml"
)


def _aws(usd: float, instance: str, date: str = "2026-11-09", source: str = _HYPERSCALERS) -> Price:
    return Price(usd, date, source, f"AWS {instance}, us-east-1, on demand")


def _coreweave(usd: float, offer: str) -> Price:
    return Price(usd, "2026-09-20", _TRANSCRIBED, f"CoreWeave {offer}")


_A100_SPEC = GpuSpec(
    compute_capability=(8, 0),
    sm_count=108,
    clock_hz=1.41e9,
    shared_memory_per_sm=164 * KIB,
    l2_bytes=40 * MIB,
    reported_memory_bytes=40370 * MIB,
    fpus_per_sm=64,
)
_A100_40GB = Chip(
    name="nvidia-a100-40gb",
    platform="gpu",
    device_kinds=("NVIDIA A100-SXM4-40GB",),
    peak_flops=peak_rates(312 * TERA, float32=156 * TERA, int8=624 * TERA),
    memory_bytes=40 * GIGA,
    memory_bandwidth=1555 * GIGA,
    links=12,
    link_bandwidth=25 * GIGA,
    chips_per_host=8,
    linked_chips=8,
    network_bandwidth=50 * GIGABIT,
    gpu=_A100_SPEC,
    price=_aws(2.7447, "p4d.24xlarge"),
)
_A100_80GB = replace(
    _A100_40GB,
    name="nvidia-a100-80gb",
    device_kinds=("NVIDIA A100-SXM4-80GB",),
    memory_bytes=80 * GIGA,
    memory_bandwidth=2039 * GIGA,
    gpu=replace(_A100_SPEC, reported_memory_bytes=80 * GIB),
    price=_aws(3.4309, "p4de.24xlarge"),
)

_H100_SPEC = GpuSpec(
    compute_capability=(9, 0),
    sm_count=132,
    clock_hz=1.98e9,
    shared_memory_per_sm=228 * KIB,
    l2_bytes=50 * MIB,
    reported_memory_bytes=80 * GIB,
)
_H100 = Chip(
    name="nvidia-h100",
    platform="gpu",
    device_kinds=("NVIDIA H100 80GB HBM3",),
    peak_flops=peak_rates(
        989.4 * TERA, float32=494.7 * TERA, float8=1978.9 * TERA, int8=1978.9 * TERA
    ),
    memory_bytes=80 * GIGA,
    memory_bandwidth=3350 * GIGA,
    links=18,
    link_bandwidth=25 * GIGA,
    chips_per_host=8,
    linked_chips=8,
    network_bandwidth=400 * GIGABIT,
    gpu=_H100_SPEC,
    price=_aws(6.88, "p5.48xlarge"),
)
# The PCIe card is slower, and an NVLink bridge joins at most two of them.
_H100_PCIE = Chip(
    name="nvidia-h100-pcie",
    platform="gpu",
    device_kinds=("NVIDIA H100 PCIe",),
    peak_flops=peak_rates(756 * TERA, float32=378 * TERA, float8=1513 * TERA, int8=1513 * TERA),
    memory_bytes=80 * GIGA,
    memory_bandwidth=2000 * GIGA,
    links=12,
    link_bandwidth=25 * GIGA,
    chips_per_host=8,
    linked_chips=2,
)
_H200 = replace(
    _H100,
    name="nvidia-h200",
    device_kinds=("NVIDIA H200",),
    memory_bytes=141 * GIGA,
    memory_bandwidth=4800 * GIGA,
    gpu=replace(_H100_SPEC, reported_memory_bytes=141 * 10**9),
    price=_aws(
        7.912, "p5en.48xlarge", "2026-08-06", "https://github.com/dstackai/dstack/pull/4110"
    ),
)

_B200_SPEC = GpuSpec(
    compute_capability=(10, 0),
    sm_count=148,
    clock_hz=1.965e9,
    shared_memory_per_sm=228 * KIB,
    l2_bytes=129536 * KIB,
    reported_memory_bytes=182631 * MIB,
)
_B200 = Chip(
    name="nvidia-b200",
    platform="gpu",
    device_kinds=("NVIDIA B200",),
    peak_flops=peak_rates(2250 * TERA, float32=1100 * TERA, float8=4500 * TERA, int8=4500 * TERA),
    memory_bytes=180 * GIGA,
    memory_bandwidth=8000 * GIGA,
    links=18,
    link_bandwidth=50 * GIGA,
    chips_per_host=8,
    linked_chips=8,
    network_bandwidth=400 * GIGABIT,
    gpu=_B200_SPEC,
    price=_coreweave(8.60, "HGX B200, on demand"),
)
# The same chip with more power, four per host; NVLink joins the 72 of a rack.
_GB200 = replace(
    _B200,
    name="nvidia-gb200",
    device_kinds=("NVIDIA GB200",),
    peak_flops=peak_rates(2500 * TERA, float32=1250 * TERA, float8=5000 * TERA, int8=5000 * TERA),
    memory_bytes=186 * GIGA,
    chips_per_host=4,
    linked_chips=72,
    gpu=replace(
        _B200_SPEC,
        sm_count=152,
        clock_hz=2.062e9,
        l2_bytes=132352 * KIB,
        reported_memory_bytes=188730 * MIB,
    ),
    price=_coreweave(10.50, "GB200 NVL72, North America, on demand"),
)

GPUS = (_A100_40GB, _A100_80GB, _H100, _H100_PCIE, _H200, _B200, _GB200)
