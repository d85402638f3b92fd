"""What a flash kernel computes: its products by pass, and the share of blocks that a mask leaves.

The forward pass multiplies queries with keys, and weights with values. A backward pass computes the
scores again, and what the weights' gradient is; then it has one product for each gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.kernels.attention.masks import Mask
from dovetail.kernels.registry import KernelFlops, Shape


def flash_flops(products: Mapping[str, int], heads_axis: int) -> KernelFlops:
    """Returns a counter for kernels that are given queries, keys and values of four axes first.

    Args:
        products: how many products of scores' size a kernel has, by the beginning of its name.
        heads_axis: where the queries have their heads, 1 or 2; the sequence has the other.
    """

    def count(kernel: str, shapes: Sequence[Shape]) -> float | None:
        for name, how_many in products.items():
            if kernel.startswith(name):
                if not how_many:
                    return 0.0
                query, key, value = [shape for shape in shapes if len(shape) == 4][:3]
                batch, heads, keys = query[0], query[heads_axis], key[3 - heads_axis]
                width = (query[3] + value[3]) / 2
                return 2.0 * how_many * batch * heads * query[3 - heads_axis] * keys * width
        return None

    return count


def visible_share(mask: Mask, queries: int, keys: int, block: int) -> float:
    """Returns the share of blocks in which a query sees a key; blocks are skipped whole."""
    band = mask.band
    if band is None:
        return 1.0
    seen = 0
    for start in range(0, queries, block):
        first = 0 if band.back is None else max(0, start - band.back)
        last = keys if band.ahead is None else min(keys, start + block + band.ahead)
        seen += max(0, -(-last // block) - first // block)
    return seen / (-(-queries // block) * -(-keys // block))
