"""Comparing a run with its plan, and the history of such comparisons."""

from __future__ import annotations

import contextlib
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.config import ConfigError
from dovetail.plan.planner import Planner
from dovetail.plan.program_cache import ProgramCache
from dovetail.targets import create_virtual_devices, parse_target
from dovetail.utils import atomic_write, user_cache_folder

if TYPE_CHECKING:
    from dovetail.run import Run

# The first steps of a run are not representative.
_WARM_UP = 3
_MAX_ENTRIES = 100


@dataclass(frozen=True)
class PlanVerification:
    """A run compared with its plan.

    Attributes:
        run: the run folder.
        chip: the chip that it ran on.
        predicted_seconds: planned seconds of a step.
        measured_seconds: median seconds of a step.
        planned_bytes: planned bytes of a step on one device, without state and batch.
        measured_bytes: the growth of peak memory during steps; None if the run did not record it.
    """

    run: str
    chip: str
    predicted_seconds: float
    measured_seconds: float
    planned_bytes: float
    measured_bytes: float | None

    @property
    def time_ratio(self) -> float:
        """Measured over predicted time."""
        return self.measured_seconds / self.predicted_seconds

    @property
    def memory_ratio(self) -> float | None:
        """Measured over planned memory."""
        if self.measured_bytes is None or not self.planned_bytes:
            return None
        return self.measured_bytes / self.planned_bytes

    def facts(self) -> dict[str, Any]:
        """Returns it as JSON-serializable data."""
        return {
            "run": self.run,
            "chip": self.chip,
            "predicted_s": self.predicted_seconds,
            "measured_s": self.measured_seconds,
            "planned_bytes": self.planned_bytes,
            "measured_bytes": self.measured_bytes,
            "time_ratio": self.time_ratio,
            "memory_ratio": self.memory_ratio,
        }

    def report(self) -> str:
        """Returns it as text."""
        from dovetail.plan.report import verification_report

        return verification_report(self)


def run_planner(run: Run, target: str | None = None) -> Planner:
    """Returns the planner of a run on the machine that it ran on, whose compiler must be here.

    Args:
        run: the run.
        target: the machine, for a run that was trained without one on an accelerator.
    """
    machine = parse_target(_ran_on(run.about, target))
    create_virtual_devices(machine)
    name = run.about.get("experiment", run.path.name)
    planner = Planner(name, run.config, machine, ProgramCache())
    if planner.compile_obstacle:
        raise ConfigError(f"plan verify: {planner.compile_obstacle}")
    return planner


def _ran_on(about: dict[str, Any], target: str | None) -> str:
    """Returns the target of a run, which it may have recorded."""
    recorded, device = about.get("target"), about.get("device", "cpu")
    if recorded is None and device != "cpu":
        if target is None:
            raise ConfigError(
                f"plan verify: the run was on {device} and had no --target. Pass the one that it "
                "was on, such as --target tpu-v5p-8."
            )
        return target
    ran_on = str(recorded or "cpu")
    if target not in (None, ran_on):
        raise ConfigError(f"plan verify: the run was on {ran_on}, not on {target}.")
    return ran_on


def verify(run: Run, planner: Planner) -> PlanVerification:
    """Compares the metrics of a run with its plan on the same machine."""
    lines = run.metrics()
    steps = [line["step_seconds"] for line in lines if "step_seconds" in line][_WARM_UP:]
    if not steps:
        raise ConfigError(
            f"{run.path}: expected the metrics of more than {_WARM_UP} steps in "
            f"{run.folder.metrics.name}, got {len(lines)} lines. Let it train a little longer."
        )
    plan = planner.compiled_plan()
    grown = [line["step_memory_gb"] for line in lines if "step_memory_gb" in line]
    memory = plan.memory
    return PlanVerification(
        run=str(run.path.resolve()),
        chip=plan.machine.chip.name,
        predicted_seconds=plan.step_seconds,
        measured_seconds=statistics.median(steps),
        planned_bytes=memory.activations + memory.temporaries,
        # Later two steps are in flight, and each has its own temporaries.
        measured_bytes=grown[0] * 1e9 / plan.machine.devices if grown else None,
    )


class VerificationHistory:
    """Verified runs by chip, stored in the user's cache folder."""

    def __init__(self, path: Path | None = None) -> None:
        """Takes the file; None means Dovetail's default."""
        self.path = path or user_cache_folder() / "verified.json"

    def add(self, found: PlanVerification) -> None:
        """Records a run; it replaces an earlier entry of the same run."""
        others = [each for each in self._read() if each.get("run") != found.run]
        with contextlib.suppress(OSError):  # a read-only cache is not an error
            self.path.parent.mkdir(parents=True, exist_ok=True)
            entries = [*others, found.facts()][-_MAX_ENTRIES:]
            atomic_write(self.path, json.dumps(entries, indent=1) + "\n")

    def time(self, chip: str) -> tuple[float, int] | None:
        """Returns the median of measured over predicted time on a chip, and the number of runs."""
        found = [
            each["measured_s"] / each["predicted_s"]
            for each in self._read()
            if each.get("chip") == chip and each.get("predicted_s")
        ]
        return (statistics.median(found), len(found)) if found else None

    def _read(self) -> list[dict[str, Any]]:
        try:
            entries = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return []
        if not isinstance(entries, list):
            return []
        return [each for each in entries if isinstance(each, dict)]
