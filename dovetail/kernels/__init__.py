"""Kernels: one op per folder, with a reference and fast implementations that say what they support.

Import an op from its own folder (`from dovetail.kernels.attention import attention`). This module
has what is common to all ops: which implementation was chosen, and how to steer the choice.
"""

from dovetail.config import import_submodules
from dovetail.kernels.dispatch import (
    Implementation,
    KernelChoice,
    KernelCounter,
    Op,
    SlowKernelError,
    SlowKernelWarning,
    choices,
    clear_choices,
    current_platform,
    default_choices,
    implementation,
    interpreted,
    prefer,
    reference_only,
    strict,
    target_platform,
    watch_kernels,
)
from dovetail.kernels.settings import KernelSettings

import_submodules(__name__)  # defines all ops, so that `prefer()` knows them

__all__ = [
    "Implementation",
    "KernelChoice",
    "KernelCounter",
    "KernelSettings",
    "Op",
    "SlowKernelError",
    "SlowKernelWarning",
    "choices",
    "clear_choices",
    "current_platform",
    "default_choices",
    "implementation",
    "interpreted",
    "prefer",
    "reference_only",
    "strict",
    "target_platform",
    "watch_kernels",
]
