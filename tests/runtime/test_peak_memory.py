"""The memory of a process: its peak, and by how much it grows."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from dovetail.runtime import PeakGrowth, peak_memory_bytes

MANY = 200 * 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux sets a peak back")
def test_growth_is_from_now_on_and_the_peak_is_not_forgotten() -> None:
    np.ones(2 * MANY, np.uint8).sum()
    before = peak_memory_bytes()
    growth = PeakGrowth()
    assert (growth.bytes() or 0) < MANY / 2, "what was given back does not count"
    np.ones(MANY, np.uint8).sum()
    assert 0.9 * MANY < (growth.bytes() or 0) < 1.5 * MANY
    assert peak_memory_bytes() >= before
