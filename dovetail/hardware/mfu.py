"""What MFU means here, in one sentence. It is said by `train --help`, which loads no JAX."""

from __future__ import annotations

MFU_FORMULA = (
    "MFU = 3 x forward matmul FLOPs (plain attention, counted in full) / seconds a step / "
    "peak FLOP/s of all chips at the precision of most of these products"
)
