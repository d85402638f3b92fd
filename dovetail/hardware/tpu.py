"""Google TPUs.

Source: the page of each version under https://docs.cloud.google.com/tpu/docs (v4, v5e, v5p, v6e,
tpu7x). Those give the ICI bandwidth of a chip in both directions; here it is per link and
direction. `chips_per_host` is that of multi-host slices: v5e and v6e have hosts of eight chips, but
a slice of more than eight chips uses hosts with four.

`program_memory_bytes` is the limit in the message of libtpu 0.0.42 when it refuses a program. That
of v4 is unknown.

Not checked against those pages: the int8 rate of v5p, the links of v4, the bandwidths of tpu7x
(HBM, ICI, network), and the network of v6e. The network of v4 was not found.

Prices are on demand in us-central1, from SkyPilot's copy of Google's price list. That copy has no
date, so the date is the day it was read. None was found for v4 and tpu7x.
"""

from __future__ import annotations

import functools

from dovetail.hardware.chip import GIB, GIGA, GIGABIT, TERA, Chip, Price, peak_rates

_CATALOGUE = (
    "https://github.com/skypilot-org/skypilot-catalog/blob/"
    "006059e0f18acb1341e22a27751e9f80df6ba92f/catalogs/v8/gcp/vms.csv"
)


def _price(usd: float, offer: str) -> Price:
    return Price(usd, "2026-11-16", _CATALOGUE, f"Google Cloud {offer}, us-central1, on demand")


_tpu = functools.partial(Chip, platform="tpu", chips_per_host=4)

TPUS = (
    # 275 teraflops in bf16 or int8; 32 GiB at 1200 GB/s; 3D torus, 2400 Gb/s.
    _tpu(
        name="tpu-v4",
        device_kinds=("TPU v4",),
        peak_flops=peak_rates(275 * TERA),
        memory_bytes=32 * GIB,
        memory_bandwidth=1200 * GIGA,
        links=6,
        link_bandwidth=50 * GIGA,
        linked_chips=4096,
    ),
    # 197 teraflops bf16, 393 int8; 16 GB at 819 GB/s; 2D torus, 400 GB/s both ways; 6.4 Tb/s a pod.
    _tpu(
        name="tpu-v5e",
        device_kinds=("TPU v5 lite", "TPU v5e"),
        peak_flops=peak_rates(197 * TERA, int8=393 * TERA),
        memory_bytes=16 * GIB,
        memory_bandwidth=819 * GIGA,
        program_memory_bytes=15.75 * GIB,
        links=4,
        link_bandwidth=50 * GIGA,
        linked_chips=256,
        network_bandwidth=25 * GIGABIT,
        price=_price(1.20, "v5litepod"),
    ),
    # 459 teraflops bf16 and fp8, 918 int8; 95 GiB at 2765 GB/s; 3D torus, 1200 GB/s both ways;
    # 50 Gb/s per chip over the network. A job gets at most 6144 of a pod's 8960 chips.
    _tpu(
        name="tpu-v5p",
        device_kinds=("TPU v5", "TPU v5p"),
        peak_flops=peak_rates(459 * TERA, int8=918 * TERA),
        memory_bytes=95 * GIB,
        memory_bandwidth=2765 * GIGA,
        program_memory_bytes=95.74 * GIB,
        links=6,
        link_bandwidth=100 * GIGA,
        linked_chips=6144,
        network_bandwidth=50 * GIGABIT,
        price=_price(4.20, "v5p"),
    ),
    # 918 teraflops bf16 and fp8, 1836 int8; 32 GB at 1638 GB/s; 2D torus, 800 GB/s both ways.
    _tpu(
        name="tpu-v6e",
        device_kinds=("TPU v6 lite", "TPU v6e"),
        peak_flops=peak_rates(918 * TERA, int8=1836 * TERA),
        memory_bytes=32 * GIB,
        memory_bandwidth=1638 * GIGA,
        program_memory_bytes=31.25 * GIB,
        links=4,
        link_bandwidth=100 * GIGA,
        linked_chips=256,
        network_bandwidth=100 * GIGABIT,
        price=_price(2.70, "v6e"),
    ),
    # 2307 teraflops bf16, 4614 fp8, none published for int8; 192 GiB at 7380 GB/s; 3D torus,
    # 1200 GB/s both ways. JAX sees its two chiplets as two devices.
    _tpu(
        name="tpu-7x",
        device_kinds=("TPU7x",),
        peak_flops=peak_rates(2307 * TERA, float8=4614 * TERA),
        memory_bytes=192 * GIB,
        memory_bandwidth=7380 * GIGA,
        program_memory_bytes=2 * 94.75 * GIB,
        links=6,
        link_bandwidth=100 * GIGA,
        devices_per_chip=2,
        linked_chips=9216,
        network_bandwidth=100 * GIGABIT,
    ),
)
