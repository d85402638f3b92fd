"""Google's TPUs.

Source: the page of each version under https://cloud.google.com/tpu/docs (v4, v5e, v5p, v6e, tpu7x).
Interconnect is given there for a chip, mostly in both directions together; here it is split into
links and one direction. Not checked against those pages: the bandwidths of tpu7x, the int8 rate of
v5p and the links of v4.
"""

from __future__ import annotations

from dovetail.hardware.chip import Chip, peak_rates

_TERA = 1e12
_GIGA = 1e9
_GIB = 2**30

TPUS = (
    # 275 teraflops in bf16 or int8; 32 GiB at 1200 GB/s; 3D torus, 2400 Gb/s.
    Chip(
        name="tpu-v4",
        kind="tpu",
        device_kinds=("TPU v4",),
        peak_flops=peak_rates(275 * _TERA),
        memory_bytes=32 * _GIB,
        memory_bandwidth=1200 * _GIGA,
        links=6,
        link_bandwidth=50 * _GIGA,
    ),
    # 197 teraflops bf16, 393 int8; 16 GB at 819 GB/s; 2D torus, 400 GB/s both ways.
    Chip(
        name="tpu-v5e",
        kind="tpu",
        device_kinds=("TPU v5 lite", "TPU v5e"),
        peak_flops=peak_rates(197 * _TERA, int8=393 * _TERA),
        memory_bytes=16 * _GIB,
        memory_bandwidth=819 * _GIGA,
        links=4,
        link_bandwidth=50 * _GIGA,
    ),
    # 459 teraflops bf16 and fp8, 918 int8; 95 GiB at 2765 GB/s; 3D torus, 1200 GB/s both ways.
    Chip(
        name="tpu-v5p",
        kind="tpu",
        device_kinds=("TPU v5", "TPU v5p"),
        peak_flops=peak_rates(459 * _TERA, int8=918 * _TERA),
        memory_bytes=95 * _GIB,
        memory_bandwidth=2765 * _GIGA,
        links=6,
        link_bandwidth=100 * _GIGA,
    ),
    # 918 teraflops bf16 and fp8, 1836 int8; 32 GB at 1638 GB/s; 2D torus, 800 GB/s both ways.
    Chip(
        name="tpu-v6e",
        kind="tpu",
        device_kinds=("TPU v6 lite", "TPU v6e"),
        peak_flops=peak_rates(918 * _TERA, int8=1836 * _TERA),
        memory_bytes=32 * _GIB,
        memory_bandwidth=1638 * _GIGA,
        links=4,
        link_bandwidth=100 * _GIGA,
    ),
    # 2307 teraflops bf16, 4614 fp8, none published for int8; 192 GiB at 7380 GB/s; 3D torus,
    # 1200 GB/s both ways. JAX sees its two chiplets as two devices.
    Chip(
        name="tpu-7x",
        kind="tpu",
        device_kinds=("TPU7x",),
        peak_flops=peak_rates(2307 * _TERA, float8=4614 * _TERA),
        memory_bytes=192 * _GIB,
        memory_bandwidth=7380 * _GIGA,
        links=6,
        link_bandwidth=100 * _GIGA,
        devices_per_chip=2,
    ),
)
