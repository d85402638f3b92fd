"""Kernels: one op a folder, with a plain reference and fast versions that say what they support.

Import an op from its own folder (`from dovetail.kernels.attention import attention`); this door
leads to what is common to all: which implementation was chosen, and how to steer the choice.
"""

from dovetail.config import import_submodules
from dovetail.kernels.registry import (
    Choice,
    Implementation,
    KernelCounter,
    Op,
    SlowKernelError,
    SlowKernelWarning,
    choices,
    current_platform,
    forget_choices,
    interpreted,
    prefer,
    references,
    strict,
    target_platform,
    unsteered,
    watch_kernels,
)
from dovetail.kernels.settings import KernelSettings

import_submodules(__name__)  # an op is known by being here

__all__ = [
    "Choice",
    "Implementation",
    "KernelCounter",
    "KernelSettings",
    "Op",
    "SlowKernelError",
    "SlowKernelWarning",
    "choices",
    "current_platform",
    "forget_choices",
    "interpreted",
    "prefer",
    "references",
    "strict",
    "target_platform",
    "unsteered",
    "watch_kernels",
]
