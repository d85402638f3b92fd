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

from dovetail.hardware.chip import Chip, GpuSpec, Price, peak_rates

_TERA = 1e12
_GIGA = 1e9
_GIGABIT = 1e9 / 8
_KIB = 1 << 10
_MIB = 1 << 20
_GIB = 1 << 30

_A100 = peak_rates(312 * _TERA, float32=156 * _TERA, int8=624 * _TERA)
_H100_SXM = peak_rates(
    989.4 * _TERA, float32=494.7 * _TERA, float8=1978.9 * _TERA, int8=1978.9 * _TERA
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


GPUS = (
    Chip(
        name="nvidia-a100-40gb",
        platform="gpu",
        device_kinds=("NVIDIA A100-SXM4-40GB",),
        peak_flops=_A100,
        memory_bytes=40 * _GIGA,
        memory_bandwidth=1555 * _GIGA,
        links=12,
        link_bandwidth=25 * _GIGA,
        chips_per_host=8,
        linked_chips=8,
        network_bandwidth=50 * _GIGABIT,
        gpu=GpuSpec(
            compute_capability=(8, 0),
            sm_count=108,
            clock_hz=1.41e9,
            shared_memory_per_sm=164 * _KIB,
            l2_bytes=40 * _MIB,
            reported_memory_bytes=40370 * _MIB,
            fpus_per_sm=64,
        ),
        price=_aws(2.7447, "p4d.24xlarge"),
    ),
    Chip(
        name="nvidia-a100-80gb",
        platform="gpu",
        device_kinds=("NVIDIA A100-SXM4-80GB",),
        peak_flops=_A100,
        memory_bytes=80 * _GIGA,
        memory_bandwidth=2039 * _GIGA,
        links=12,
        link_bandwidth=25 * _GIGA,
        chips_per_host=8,
        linked_chips=8,
        network_bandwidth=50 * _GIGABIT,
        gpu=GpuSpec(
            compute_capability=(8, 0),
            sm_count=108,
            clock_hz=1.41e9,
            shared_memory_per_sm=164 * _KIB,
            l2_bytes=40 * _MIB,
            reported_memory_bytes=80 * _GIB,
            fpus_per_sm=64,
        ),
        price=_aws(3.4309, "p4de.24xlarge"),
    ),
    Chip(
        name="nvidia-h100",
        platform="gpu",
        device_kinds=("NVIDIA H100 80GB HBM3",),
        peak_flops=_H100_SXM,
        memory_bytes=80 * _GIGA,
        memory_bandwidth=3350 * _GIGA,
        links=18,
        link_bandwidth=25 * _GIGA,
        chips_per_host=8,
        linked_chips=8,
        network_bandwidth=400 * _GIGABIT,
        gpu=GpuSpec(
            compute_capability=(9, 0),
            sm_count=132,
            clock_hz=1.98e9,
            shared_memory_per_sm=228 * _KIB,
            l2_bytes=50 * _MIB,
            reported_memory_bytes=80 * _GIB,
        ),
        price=_aws(6.88, "p5.48xlarge"),
    ),
    # The PCIe card is slower, and an NVLink bridge joins at most two of them.
    Chip(
        name="nvidia-h100-pcie",
        platform="gpu",
        device_kinds=("NVIDIA H100 PCIe",),
        peak_flops=peak_rates(
            756 * _TERA, float32=378 * _TERA, float8=1513 * _TERA, int8=1513 * _TERA
        ),
        memory_bytes=80 * _GIGA,
        memory_bandwidth=2000 * _GIGA,
        links=12,
        link_bandwidth=25 * _GIGA,
        chips_per_host=8,
        linked_chips=2,
    ),
    Chip(
        name="nvidia-h200",
        platform="gpu",
        device_kinds=("NVIDIA H200",),
        peak_flops=_H100_SXM,
        memory_bytes=141 * _GIGA,
        memory_bandwidth=4800 * _GIGA,
        links=18,
        link_bandwidth=25 * _GIGA,
        chips_per_host=8,
        linked_chips=8,
        network_bandwidth=400 * _GIGABIT,
        gpu=GpuSpec(
            compute_capability=(9, 0),
            sm_count=132,
            clock_hz=1.98e9,
            shared_memory_per_sm=228 * _KIB,
            l2_bytes=50 * _MIB,
            reported_memory_bytes=141 * 10**9,
        ),
        price=_aws(
            7.912, "p5en.48xlarge", "2026-08-06", "https://github.com/dstackai/dstack/pull/4110"
        ),
    ),
    Chip(
        name="nvidia-b200",
        platform="gpu",
        device_kinds=("NVIDIA B200",),
        peak_flops=peak_rates(
            2250 * _TERA, float32=1100 * _TERA, float8=4500 * _TERA, int8=4500 * _TERA
        ),
        memory_bytes=180 * _GIGA,
        memory_bandwidth=8000 * _GIGA,
        links=18,
        link_bandwidth=50 * _GIGA,
        chips_per_host=8,
        linked_chips=8,
        network_bandwidth=400 * _GIGABIT,
        gpu=GpuSpec(
            compute_capability=(10, 0),
            sm_count=148,
            clock_hz=1.965e9,
            shared_memory_per_sm=228 * _KIB,
            l2_bytes=129536 * _KIB,
            reported_memory_bytes=182631 * _MIB,
        ),
        price=_coreweave(8.60, "HGX B200, on demand"),
    ),
    # The same chip with more power, four per host; NVLink joins the 72 of a rack.
    Chip(
        name="nvidia-gb200",
        platform="gpu",
        device_kinds=("NVIDIA GB200",),
        peak_flops=peak_rates(
            2500 * _TERA, float32=1250 * _TERA, float8=5000 * _TERA, int8=5000 * _TERA
        ),
        memory_bytes=186 * _GIGA,
        memory_bandwidth=8000 * _GIGA,
        links=18,
        link_bandwidth=50 * _GIGA,
        chips_per_host=4,
        linked_chips=72,
        network_bandwidth=400 * _GIGABIT,
        gpu=GpuSpec(
            compute_capability=(10, 0),
            sm_count=152,
            clock_hz=2.062e9,
            shared_memory_per_sm=228 * _KIB,
            l2_bytes=132352 * _KIB,
            reported_memory_bytes=188730 * _MIB,
        ),
        price=_coreweave(10.50, "GB200 NVL72, North America, on demand"),
    ),
)
