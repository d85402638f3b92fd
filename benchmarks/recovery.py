"""How long does a run take to recover?

Each case trains a small model under the supervisor, injects one fault after a few steps, and
measures until the next life has done its first step:

    crash          kill -9 of the only process
    crash, spare   the same, with a warm spare process
    hang           a process that is stopped (SIGSTOP); steps may take 10 s
    lost peer      kill -9 of one of two processes
    cold           the command is started again by hand, with an empty compilation cache

All but the last find the compiled step in the cache. The cases take turns, so that machine noise
affects all of them equally. `detect` ends when the supervisor decides to restart.

    python benchmarks/recovery.py
    python benchmarks/recovery.py --turns 1 --cases "crash;crash, spare"
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from dovetail.runtime.chaos.harness import SMALL
from dovetail.runtime.points import FAULTS, FOLDER, PROCESS

_STEPS, _FAULT_STEP = 12, 8


@dataclass(frozen=True)
class Case:
    """A fault and how it is met."""

    action: str = "kill"
    options: tuple[str, ...] = ("--supervise",)
    processes: int = 1


CASES = {
    "crash": Case(),
    "crash, spare": Case(options=("--supervise", "--spares", "1")),
    "hang": Case("stop", ("--supervise", "--hang-seconds", "10")),
    "lost peer": Case(options=("--supervise", "--processes", "2"), processes=2),
    "cold": Case(options=()),
}


def main() -> None:
    """Runs the cases in turns and prints the medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--cases", default=";".join(CASES), help="separated by semicolons")
    arguments = parser.parse_args()
    names = [name.strip() for name in arguments.cases.split(";")]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:  # fills the caches
            _measure(CASES[name], Path(scratch), name == "cold")
        for turn in range(arguments.turns):
            for name in names:
                detect, total = _measure(CASES[name], Path(scratch), name == "cold")
                found[name].append((detect, total))
                print(f"turn {turn + 1}  {name:13} detect {detect:5.1f} s  total {total:5.1f} s")
    print(f"\n{'':13} {'detect':>8} {'restart to first step':>22} {'total':>8}")
    for name, times in found.items():
        detect = statistics.median(each[0] for each in times)
        total = statistics.median(each[1] for each in times)
        print(f"{name:13} {detect:6.1f} s {total - detect:20.1f} s {total:6.1f} s")


def _measure(case: Case, scratch: Path, is_cold: bool) -> tuple[float, float]:
    """Returns the seconds to detect a fault, and to the first step after it."""
    folder = scratch / "trial"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    # A run of hours gives spares the time to import; this one pauses.
    pause = f"step@{_FAULT_STEP - 1}=sleep:12;" if case.action == "kill" else ""
    fault = f"{pause}step@{_FAULT_STEP}={case.action}"
    environment = {FAULTS: fault, FOLDER: str(folder), PROCESS: str(case.processes - 1)}
    _train(case, folder, environment)
    if is_cold:
        began = time.time()
        # The prepared data stays; only compiled programs are gone.
        _train(case, folder, environment | {"JAX_COMPILATION_CACHE_DIR": str(folder / "cache")})
        return 0.0, _first_step(folder) - began
    (marker,) = folder.glob(f"injected step@{_FAULT_STEP}=*")
    began = float(marker.read_text().split()[1])  # of the clock that events have
    events = (folder / "run" / "events.jsonl").read_text().splitlines()
    restarts = [json.loads(line) for line in events if '"Restart"' in line]
    return restarts[0]["time"] - began, _first_step(folder) - began


def _train(case: Case, folder: Path, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "dovetail", "train", "tiny-lm", *SMALL, *case.options]
    command += ["--run", str(folder / "run"), "--steps", str(_STEPS), "checkpointer.every=2"]
    command += [f"mesh.fsdp={case.processes}", "evaluators={}"]
    devices = {"JAX_NUM_CPU_DEVICES": "1"} if case.processes > 1 else {}
    subprocess.run(
        command,
        env={**os.environ, **devices, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )


def _first_step(folder: Path) -> float:
    """Returns when the second life had done its first step."""
    lines = (folder / "run" / "goodput" / "000002-0.jsonl").read_text().splitlines()
    return next(float(entry["at"]) for line in lines if "steps" in (entry := json.loads(line)))


if __name__ == "__main__":
    main()
