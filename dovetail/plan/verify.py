"""After a real run: what was predicted against what was measured, kept for the next plan."""

from __future__ import annotations

import contextlib
import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.config import ConfigError
from dovetail.hardware import user_cache_folder, write_whole
from dovetail.plan.planner import Planner

if TYPE_CHECKING:
    from dovetail.runtime import RunFolder

# The first steps of a run warm caches up, and the clock that it is timed by.
_WARM_UP = 3
_MOST_KEPT = 100


@dataclass(frozen=True)
class Verified:
    """A run and its plan.

    Attributes:
        run: its folder.
        chip: what it ran on.
        predicted_s: the planned seconds of a step.
        measured_s: the median of what the run took.
        planned_bytes: what a step was to take beside state and batch, on one device.
        measured_bytes: by how much the peak rose in the run's steps; None where it was not noted.
    """

    run: str
    chip: str
    predicted_s: float
    measured_s: float
    planned_bytes: float
    measured_bytes: float | None

    @property
    def time_ratio(self) -> float:
        """How many times as long the run took as was predicted."""
        return self.measured_s / self.predicted_s

    @property
    def memory_ratio(self) -> float | None:
        """How many times as much it took as was planned."""
        if self.measured_bytes is None or not self.planned_bytes:
            return None
        return self.measured_bytes / self.planned_bytes


def verify(folder: RunFolder, planner: Planner) -> Verified:
    """Compares a run's figures with its plan on the same machine."""
    lines = _figures(folder.metrics)
    steps = [line["step_seconds"] for line in lines if "step_seconds" in line][_WARM_UP:]
    if not steps:
        raise ConfigError(
            f"{folder.path}: expected the figures of more than {_WARM_UP} steps in "
            f"{folder.metrics.name}, got {len(lines)} lines. Let it train a little longer."
        )
    plan = planner.exact()
    grown = [line["step_memory_gb"] for line in lines if "step_memory_gb" in line]
    memory = plan.memory
    return Verified(
        run=str(folder.path.resolve()),
        chip=plan.machine.chip.name,
        predicted_s=plan.step_s,
        measured_s=statistics.median(steps),
        planned_bytes=memory.activations + memory.temporaries,
        # Later on two steps are in flight, and each has temporaries of its own.
        measured_bytes=grown[0] * 1e9 / plan.machine.devices if grown else None,
    )


class Ratios:
    """What verified runs have shown, by chip; it lives among the user's caches."""

    def __init__(self, path: Path | None = None) -> None:
        """Takes the file; None means Dovetail's own."""
        self.path = path or user_cache_folder() / "verified.json"

    def keep(self, found: Verified) -> None:
        """Notes a run; one that is verified again takes the place of its older self."""
        kept = [each for each in self._read() if each.get("run") != found.run]
        with contextlib.suppress(OSError):  # a cache that cannot be written is no reason to stop
            self.path.parent.mkdir(parents=True, exist_ok=True)
            entries = [*kept, asdict(found)][-_MOST_KEPT:]
            write_whole(self.path, json.dumps(entries, indent=1) + "\n")

    def time(self, chip: str) -> tuple[float, int] | None:
        """Returns how many times as long runs on a chip took as predicted, and how many runs."""
        found = [
            each["measured_s"] / each["predicted_s"]
            for each in self._read()
            if each.get("chip") == chip and each.get("predicted_s")
        ]
        return (statistics.median(found), len(found)) if found else None

    def _read(self) -> list[dict[str, Any]]:
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return []
        return [each for each in kept if isinstance(each, dict)] if isinstance(kept, list) else []


def _figures(path: Path) -> list[dict[str, Any]]:
    """Reads the lines of a run; one that was cut off in the middle is left out."""
    if not path.is_file():
        raise ConfigError(f"{path.parent}: there are no figures of a run here ({path.name}).")
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found
