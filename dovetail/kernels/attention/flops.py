"""FLOPs of a flash kernel: its matmuls by pass, and the fraction of blocks that a mask leaves.

The forward pass multiplies queries with keys, and probabilities with values. A backward pass
recomputes the scores and computes dp; then it has one matmul for each gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.kernels.attention.masks import Mask
from dovetail.kernels.dispatch import KernelFlops, Shape


def flash_flops(matmuls: Mapping[str, int], heads_axis: int) -> KernelFlops:
    """Returns a FLOP counter for kernels whose first inputs of four axes are q, k and v.

    Args:
        matmuls: how many matmuls of the scores' size a kernel has, by the prefix of its name.
        heads_axis: the axis of the heads in q, 1 or 2; the sequence is the other.
    """

    def count(kernel: str, shapes: Sequence[Shape]) -> float | None:
        for name, number in matmuls.items():
            if kernel.startswith(name):
                if not number:
                    return 0.0
                q, k, v = [shape for shape in shapes if len(shape) == 4][:3]
                batch, heads, keys = q[0], q[heads_axis], k[3 - heads_axis]
                width = (q[3] + v[3]) / 2
                return 2.0 * number * batch * heads * q[3 - heads_axis] * keys * width
        return None

    return count


def visible_fraction(mask: Mask, queries: int, keys: int, block: int) -> float:
    """Returns the fraction of blocks that are not fully masked: the others are skipped."""
    band = mask.band
    if band is None:
        return 1.0
    visible = 0
    for start in range(0, queries, block):
        first = 0 if band.back is None else max(0, start - band.back)
        last = keys if band.ahead is None else min(keys, start + block + band.ahead)
        visible += max(0, -(-last // block) - first // block)
    return visible / (-(-queries // block) * -(-keys // block))
