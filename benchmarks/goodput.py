"""Does the goodput simulator predict a real run?

A small model trains under the supervisor, and `kill -9` strikes at random times (exponential). Then
the simulator gets what the log of that run says: how often it failed, how long a start, a restore
and a save took, and how often it saved. It prints the goodput of both as one line of JSON; the
second number of the simulation is the standard deviation of a run as long as the real one.

    python benchmarks/goodput.py
    python benchmarks/goodput.py --seconds 900 --mean 40 --seed 3
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from dovetail.runtime.chaos.harness import SMALL
from dovetail.runtime.goodput import Goodput, goodput
from dovetail.runtime.goodput.simulate import (
    FailureKind,
    Scenario,
    Simulation,
    Tier,
    first_order,
    measured,
    simulate,
)

_DAY = 86400.0
_RUNS = 200


def main() -> None:
    """Trains under fire, then simulates the same."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=320.0, help="how long to train")
    parser.add_argument("--mean", type=float, default=25.0, help="seconds between two kills")
    parser.add_argument("--every", type=int, default=1000, help="steps between two saves")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        kills = _train_under_fire(folder, arguments.seconds, arguments.mean, arguments.every, draw)
        found = goodput(folder)
    wall = found.wall - _first_start(found)
    scenario = _scenario_of(found, kills / wall)
    simulated = simulate(scenario, days=wall / _DAY, seed=arguments.seed, repeats=_RUNS)
    _report(_trained(found) / wall, kills, wall, scenario, simulated)


def _train_under_fire(
    folder: Path, seconds: float, mean: float, every: int, draw: random.Random
) -> int:
    """Trains for a while; returns how often the worker was killed."""
    command = [sys.executable, "-m", "dovetail", "train", "tiny-lm", *SMALL, "--supervise"]
    command += ["--restarts", "100000", "--run", str(folder), "--steps", "100000000"]
    command += [f"checkpointer.every={every}", "evaluators={}"]
    supervisor = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end, kills = time.monotonic() + seconds, 0
    try:
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(draw.expovariate(1 / mean), left))
            if time.monotonic() < end:
                kills += _kill_worker(supervisor.pid)
    finally:
        supervisor.send_signal(signal.SIGTERM)
        supervisor.wait(60)
    return kills


def _kill_worker(supervisor: int) -> int:
    """Kills the worker, if there is one now; a failure may strike while nothing runs."""
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    for child in children:
        os.kill(int(child), signal.SIGKILL)
    return len(children)


def _first_start(found: Goodput) -> float:
    """Returns the seconds before the first step, with which no simulation begins."""
    first = [span.seconds for span in found.timeline if span.life == 1]
    return sum(each.get(name, 0.0) for each in first for name in ("start", "compile", "restore"))


def _trained(found: Goodput) -> float:
    """Returns the seconds of steps that count, with their waits for input.

    Steps of 2 ms wait for a quarter of their time. No simulation knows that, and no failure costs
    it.
    """
    return found.seconds["step"] + found.seconds["input"]


def _scenario_of(found: Goodput, failures_per_second: float) -> Scenario:
    """Returns a scenario with the times that the log of a run says."""
    trained = _trained(found) + found.seconds["rolled_back"]
    interval = trained / max(found.saves, 1)
    durable = Tier(interval=interval, stall=0.0, write=0.0, restore=0.0)
    scenario = Scenario(
        hosts=1,
        rate=failures_per_second * _DAY * 1000,
        kinds=(FailureKind("kill", 1),),
        replacement=0.0,
        spares=0,
        local=durable,  # so that the measured stall and restore are set
        durable=durable,
    )
    scenario = measured(found, scenario)
    assert scenario.local is not None
    return replace(scenario, local=None, durable=scenario.local)


def _report(
    fraction: float, kills: int, wall: float, scenario: Scenario, simulated: Simulation
) -> None:
    print(
        json.dumps(
            {
                "seconds": round(wall, 1),
                "kills": kills,
                "measured": round(fraction, 4),
                "simulated": round(simulated.goodput, 4),
                "deviation": round(simulated.error * math.sqrt(_RUNS), 4),
                "formula": round(first_order(scenario), 4),
                "restart_s": round(scenario.detect, 2),
                "start_s": round(scenario.start, 2),
                "restore_s": round(scenario.durable.restore, 2),
                "save_every_s": round(scenario.durable.interval, 2),
                "save_stall_s": round(scenario.durable.stall, 3),
            }
        )
    )


if __name__ == "__main__":
    main()
