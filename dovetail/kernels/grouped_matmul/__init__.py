"""Grouped matmul: the op, and its implementations in the order in which they are tried."""

from dovetail.kernels.grouped_matmul.op import grouped_matmul, grouped_matmul_op

# isort: split
# Each of these registers itself: the first that supports a call runs it.
from dovetail.kernels.grouped_matmul import reference as _reference

# isort: split
from dovetail.kernels.grouped_matmul import blocked as _blocked
from dovetail.kernels.grouped_matmul import megablox as _megablox
from dovetail.kernels.grouped_matmul import triton as _triton

__all__ = ["grouped_matmul", "grouped_matmul_op"]
del _blocked, _megablox, _reference, _triton
