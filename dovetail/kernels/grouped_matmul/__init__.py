"""Grouped matmul: the op, and its implementations in order."""

from dovetail.kernels.grouped_matmul import blocked, megablox, reference, triton
from dovetail.kernels.grouped_matmul.op import grouped_matmul, grouped_matmul_op

grouped_matmul_op.implementations = (
    blocked.blocked,
    megablox.megablox,
    triton.triton,
    reference.reference,
)

__all__ = ["grouped_matmul", "grouped_matmul_op"]
