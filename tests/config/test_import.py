"""Importing dovetail.config loads no JAX, and little else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

PROBE = """
import sys
before = set(sys.modules)
import time
start = time.perf_counter()
import dovetail.config
spent = time.perf_counter() - start
import json
print(json.dumps({"spent": spent, "modules": sorted(set(sys.modules) - before)}))
"""


def test_importing_config_loads_no_array_library_and_is_quick() -> None:
    runs = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", PROBE], capture_output=True, text=True, cwd=ROOT, check=True
        )
        runs.append(json.loads(done.stdout))
    loaded = {name.partition(".")[0] for name in runs[0]["modules"]}
    assert not loaded & {
        "jax",
        "jaxlib",
        "numpy",
        "optax",
        "orbax",
        "rich",
        "asyncio",
        "hypothesis",
    }
    own = {name for name in runs[0]["modules"] if name.startswith("dovetail.")}
    assert all(name.startswith("dovetail.config") for name in own)
    # About 40 ms on a quiet machine; a limit that only a heavy import would pass.
    assert min(run["spent"] for run in runs) < 0.5


def test_files_stay_small() -> None:
    for file in (ROOT / "dovetail" / "config").glob("*.py"):
        assert len(file.read_text().splitlines()) < 450, f"{file.name} has grown: split it"
