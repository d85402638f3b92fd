"""What the catalogue knows about a chip. Plain data in SI units: bytes, bytes/s, FLOP/s and Hz."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Units of the catalogue.
KIB, MIB, GIB = 2**10, 2**20, 2**30
GIGA, TERA = 1e9, 1e12
GIGABIT = GIGA / 8

# The precisions that `Chip.peak_flops` lists.
PRECISIONS = ("float32", "bfloat16", "float8", "int8")
# Precisions that are chosen for speed alone.
QUANTIZED_PRECISIONS = ("float8", "int8")

MFU_FORMULA = (
    "MFU = 3 x forward matmul FLOPs (plain attention, counted in full) / seconds per step / "
    "peak FLOP/s of all chips at the precision of most of these products"
)


def precision_of(dtype: str) -> str:
    """Returns the key of `Chip.peak_flops` for a dtype; all float8 formats have the same rate."""
    return "float8" if dtype.startswith("float8") else dtype


@dataclass(frozen=True)
class Price:
    """The public on-demand list price of one chip for an hour.

    Attributes:
        usd_per_chip_hour: the price of an instance divided by its chips; it includes the host.
        date: the date that the source gives, or else the day on which it was read.
        source: the URL where the price was read.
        offer: the instance type, region and terms.
    """

    usd_per_chip_hour: float
    date: str
    source: str
    offer: str


@dataclass(frozen=True)
class GpuSpec:
    """What XLA's GPU compiler needs beside the fields of `Chip`, from NVIDIA's architecture papers.

    B200 and GB200 are as the devices report themselves. GB200 and the 40 GB A100 were read in
    https://github.com/openxla/xla/tree/main/xla/backends/gpu/target_config/specs.

    Attributes:
        compute_capability: major and minor.
        sm_count: streaming multiprocessors.
        clock_hz: the boost clock.
        shared_memory_per_sm: bytes, of which a block may take all but 1 KiB.
        l2_bytes: the L2 cache.
        reported_memory_bytes: the device memory that the driver reports. `Chip.memory_bytes` is the
            advertised size, and mostly less; the difference is left to CUDA and NCCL.
        fpus_per_sm: float32 units.
        registers_per_sm: 32-bit registers; a block may take all of them.
    """

    compute_capability: tuple[int, int]
    sm_count: int
    clock_hz: float
    shared_memory_per_sm: int
    l2_bytes: int
    reported_memory_bytes: int
    fpus_per_sm: int = 128
    registers_per_sm: int = 1 << 16


@dataclass(frozen=True)
class Chip:
    """One accelerator, or one CPU host.

    Attributes:
        name: the name that targets refer to, such as `tpu-v5p`.
        platform: the JAX platform, `tpu`, `gpu`, `neuron` or `cpu`.
        device_kinds: the values of JAX's `device.device_kind` for it.
        peak_flops: dense peak FLOP/s by precision, without sparsity, of matmuls under JAX's default
            settings: float32 runs as bfloat16 on TPUs and as TF32 on NVIDIA GPUs. A precision
            without a unit of its own is widened to bfloat16 and has that rate.
        memory_bytes: HBM; on a CPU, the memory of the host.
        memory_bandwidth: bytes/s between HBM and the chip.
        links: ICI, NVLink or NeuronLink links of one chip.
        link_bandwidth: bytes/s over one link in one direction.
        devices_per_chip: JAX devices that share this chip. All other fields are per chip.
        chips_per_host: chips of one host (one process) in a machine of several hosts.
        linked_chips: the most chips that links can join: a TPU pod or an NVLink domain. Beyond it
            there is only the data-center network (DCN).
        network_bandwidth: bytes/s over the DCN in one direction, a chip's share; None if unknown.
        program_memory_bytes: the HBM that its compiler allows programs; None if unknown.
        price: None if no public list price was found.
        gpu: what compiling for this GPU takes; None for other chips, or if unknown.
    """

    name: str
    platform: str
    device_kinds: tuple[str, ...]
    peak_flops: Mapping[str, float]
    memory_bytes: float
    memory_bandwidth: float
    links: int = 0
    link_bandwidth: float = 0.0
    devices_per_chip: int = 1
    chips_per_host: int = 1
    linked_chips: int = 1
    network_bandwidth: float | None = None
    program_memory_bytes: float | None = None
    price: Price | None = None
    gpu: GpuSpec | None = None

    def flops_per_device(self, precision: str) -> float:
        """Returns the peak FLOP/s of one JAX device: the denominator of its MFU."""
        if precision not in self.peak_flops:
            raise ValueError(
                f"{self.name}: no peak rate for {precision!r}. "
                f"There is one for {', '.join(self.peak_flops) or 'none'}."
            )
        return self.peak_flops[precision] / self.devices_per_chip

    def is_faster_in(self, precision: str) -> bool:
        """Returns whether matmuls are faster in a precision than in bfloat16."""
        return self.peak_flops.get(precision, 0.0) > self.peak_flops.get("bfloat16", 0.0)

    @property
    def memory_per_device(self) -> float:
        """The HBM bytes of one JAX device."""
        return self.memory_bytes / self.devices_per_chip

    @property
    def interconnect_bandwidth(self) -> float:
        """Bytes/s out of the chip over all its links."""
        return self.links * self.link_bandwidth


def peak_rates(
    bfloat16: float,
    float32: float | None = None,
    float8: float | None = None,
    int8: float | None = None,
) -> dict[str, float]:
    """Returns `Chip.peak_flops`, with the bfloat16 rate where a chip has nothing faster."""
    return {
        "float32": float32 or bfloat16,
        "bfloat16": bfloat16,
        "float8": float8 or bfloat16,
        "int8": int8 or bfloat16,
    }
