"""What is said of slow kernels while a step is traced: a plan tells it with the rest."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from dovetail.kernels import SlowKernelWarning


@contextmanager
def noting_slow_kernels() -> Iterator[list[str]]:
    """Collects warnings of slow kernels, once each; other warnings go where they would."""
    slow: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SlowKernelWarning)
        yield slow
    for each in caught:
        if not issubclass(each.category, SlowKernelWarning):
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
        elif str(each.message) not in slow:
            slow.append(str(each.message))
