"""Amazon Trainium.

Source: https://awsdocs-neuron.readthedocs-hosted.com/en/latest (the pages on Trainium2 and on Trn2
instances): 1299 teraflops fp8, 667 bf16, 181 fp32; 96 GiB at 2.9 TB/s (one page says 3); sixteen
chips per host in a 4 x 4 torus, so four links per chip.

Not checked: that the 1.28 TB/s of NeuronLink per chip count both directions, and JAX's device kind
(none is listed, so a run there shows no MFU). The eight cores of a chip are four JAX devices, since
Neuron joins them in pairs by default. The network is 3200 Gb/s per host. No int8 rate is published.
"""

from __future__ import annotations

from dovetail.hardware.chip import GIB, GIGA, TERA, Chip, Price, peak_rates

TRAINIUM = (
    Chip(
        name="trainium2",
        platform="neuron",
        device_kinds=(),
        peak_flops=peak_rates(667 * TERA, float32=181 * TERA, float8=1299 * TERA),
        memory_bytes=96 * GIB,
        memory_bandwidth=2900 * GIGA,
        links=4,
        link_bandwidth=160 * GIGA,
        devices_per_chip=4,
        chips_per_host=16,
        linked_chips=16,
        network_bandwidth=25 * GIGA,
        price=Price(
            2.235,
            "2025-11-30",
            "https://github.com/tsaol/aws-gpu/blob/main/data/trn2_instances.js",
            "AWS trn2.48xlarge, us-east-2, on demand",
        ),
    ),
)
