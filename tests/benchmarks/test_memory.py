"""The benchmark of memory runs, and its last line has both sides of every ratio."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "memory.py"
SMALL = {"width": 64, "layers": 2, "heads": 2, "hidden": 128, "vocab": 4096, "sequence": 512}


@pytest.mark.sweep
def test_each_saving_shows_beside_a_plain_step() -> None:
    options = [text for name, size in SMALL.items() for text in (f"--{name}", str(size))]
    command = [sys.executable, str(SCRIPT), *options]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(run.stdout.splitlines()[-1])
    by_hand = found["by_hand_mb"]
    ratios = {
        name.removesuffix("_ratio"): value
        for name, value in found.items()
        if name.endswith("_ratio")
    }
    assert len(ratios) == 4
    for name, ratio in ratios.items():
        assert ratio == pytest.approx(found[f"{name}_mb"] / by_hand, rel=1e-2), name
    best = ratios["fused_loss_blockwise_attention"]
    assert best < ratios["fused_loss_plain_attention"] < ratios["plain_loss_plain_attention"]
    assert best < ratios["plain_loss_blockwise_attention"] < ratios["plain_loss_plain_attention"]
