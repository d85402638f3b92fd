"""Kernels: one op a folder, with a plain reference and fast versions that say what they support.

Import an op from its own folder (`from dovetail.kernels.attention import attention`); this door
leads to what is common to all: which implementation was chosen, and how to steer the choice.
"""

from dovetail.kernels import attention, cross_entropy, grouped_matmul
from dovetail.kernels.registry import (
    Choice,
    Implementation,
    Op,
    SlowKernelError,
    SlowKernelWarning,
    choices,
    current_platform,
    forget_choices,
    prefer,
    references,
    strict,
    target_platform,
)

__all__ = [
    "Choice",
    "Implementation",
    "Op",
    "SlowKernelError",
    "SlowKernelWarning",
    "attention",
    "choices",
    "cross_entropy",
    "current_platform",
    "forget_choices",
    "grouped_matmul",
    "prefer",
    "references",
    "strict",
    "target_platform",
]
