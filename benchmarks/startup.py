"""Startup times: help, a config, the first line of a plan, the first step of tiny-lm.

Each time is the best of several processes. The first step is timed from process start to the first
line of metrics.jsonl, once with an empty compilation cache and then with a full one. The data is
prepared beforehand. The first line of a plan is the analytic one; with a compiler for TPUs, the
plan continues after it.

    python benchmarks/startup.py
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

DOVETAIL = [sys.executable, "-c", "import sys; from dovetail.cli import main; sys.exit(main())"]


def main() -> None:
    """Times the commands and prints one JSON object last."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        environment = {**os.environ, "XDG_CACHE_HOME": str(work / "cache")}
        _run([*DOVETAIL, "data", "prepare", "tiny-lm"], work, environment)
        times = {
            "help_s": _best([*DOVETAIL, "--help"], work, environment),
            "import_jax_s": _best([sys.executable, "-c", "import jax"], work, environment),
            "config_show_s": _best([*DOVETAIL, "config", "show", "tiny-lm"], work, environment),
            "first_plan_s": min(_first_plan(work, environment) for _ in range(5)),
        }
        _first_step(work, environment, "warm-up")  # measures the CPU once, as any first run does
        shutil.rmtree(work / "cache" / "dovetail" / "compiled")
        times["first_step_cold_s"] = _first_step(work, environment, "cold")
        times["first_step_warm_s"] = min(
            _first_step(work, environment, f"warm-{number}") for number in range(3)
        )
    for name, seconds in times.items():
        print(f"{name:<18} {seconds:6.2f}")
    print(f"{'config show - jax':<18} {times['config_show_s'] - times['import_jax_s']:6.2f}")
    print(json.dumps({name: round(seconds, 3) for name, seconds in times.items()}))


def _best(command: Sequence[str], work: Path, environment: dict[str, str], times: int = 5) -> float:
    return min(_run(command, work, environment) for _ in range(times))


def _run(command: Sequence[str], work: Path, environment: dict[str, str]) -> float:
    before = time.perf_counter()
    subprocess.run(command, cwd=work, env=environment, check=True, capture_output=True)
    return time.perf_counter() - before


def _first_plan(work: Path, environment: dict[str, str]) -> float:
    """Plans Llama 2 7B for 256 chips, until the first line is printed."""
    command = [*DOVETAIL, "plan", "llama2-7b", "--target", "tpu-v5p-512"]
    before = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=work,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for line in process.stderr or ():
            if line.startswith("analytic"):
                return time.perf_counter() - before
        raise RuntimeError(f"{command} ended with code {process.wait()} before a line.")
    finally:
        process.kill()
        process.wait()


def _first_step(work: Path, environment: dict[str, str], name: str) -> float:
    """Starts a run, waits for its first line of metrics, and stops it."""
    metrics = work / name / "metrics.jsonl"
    command = [*DOVETAIL, "train", "tiny-lm", "--run", str(work / name)]
    before = time.perf_counter()
    process = subprocess.Popen(command, cwd=work, env=environment, stderr=subprocess.DEVNULL)
    try:
        while not (metrics.exists() and metrics.stat().st_size):
            if process.poll() is not None:
                raise RuntimeError(f"{command} ended with code {process.returncode} before a step.")
            time.sleep(0.005)
        return time.perf_counter() - before
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
