"""The result of a trial: the files of its run, compared with an undisturbed run."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.runtime.chaos.damage import newest_checkpoint, saved_step
from dovetail.runtime.chaos.kinds import KINDS
from dovetail.runtime.chaos.trials import STEPS, Trial
from dovetail.runtime.points import TIMES

# Between meshes, sums are in another order.
_CLOSE = 1e-3


@dataclass(frozen=True)
class Delays:
    """Seconds from a fault until the supervisor decides, a new life starts, and it trains."""

    detect: float | None = None
    restart: float | None = None
    first_step: float | None = None


@dataclass(frozen=True)
class Result:
    """The result of a trial; `problem` is None if the run survived."""

    trial: Trial
    injected: bool
    lives: int
    repeated: int
    """Steps that were computed more than once."""
    seconds: float
    delays: Delays
    problem: str | None
    noticed: str
    """What the run said about the fault."""
    output: str = ""
    """The end of the output of a run that did not survive."""


def outcome(run: Path) -> dict[str, Any]:
    """Returns the losses by step, and the digests of the final state."""
    losses = {}
    with contextlib.suppress(OSError):
        for line in (run / "metrics.jsonl").read_text().splitlines():
            with contextlib.suppress(ValueError):  # a line of a process that was killed
                entry = json.loads(line)
                if "loss" in entry:
                    losses[entry["step"]] = entry["loss"]
    digests = {}
    newest = newest_checkpoint(run)
    if newest is not None and saved_step(newest) == STEPS:
        manifest = json.loads((newest / "manifest.json").read_text())
        digests = {path: array["digest"] for path, array in manifest["arrays"].items()}
    return {"losses": losses, "digests": digests}


def difference(trial: Trial, expected: dict[str, Any], got: dict[str, Any]) -> str | None:
    """Returns how the outcome of a trial differs from an undisturbed run's, or None."""
    kind = KINDS[trial.kind]
    for step in range(1, STEPS + 1):
        loss, wanted = got["losses"].get(step), expected["losses"][step]
        if loss is None and kind.loses_metrics:
            continue
        is_close = loss is not None and math.isclose(loss, wanted, rel_tol=_CLOSE)
        if loss != wanted and not (kind.changes_mesh and is_close):
            return f"the loss of step {step} is {loss or 'missing'}, expected {wanted}"
    if missing := expected["digests"].keys() - got["digests"].keys():
        return f"{sorted(missing)[0]} is not in a final checkpoint"
    if kind.changes_mesh:
        return None
    different = [p for p, digest in expected["digests"].items() if got["digests"][p] != digest]
    return f"{different[0]} differs in the final state" if different else None


def lives(run: Path) -> list[dict[str, Any]]:
    """Returns the records of all lives of a run."""
    return [json.loads(file.read_text()) for file in sorted((run / "lives").glob("*.json"))]


def repeated(records: Sequence[dict[str, Any]]) -> int:
    """Returns how many steps were computed again by a later life."""
    furthest = count = 0
    for life in records:
        restored, reached = life.get("restored") or 0, life.get("reached") or 0
        count += max(furthest - restored, 0)
        furthest = max(furthest, reached)
    return count


def continued_from(run: Path) -> int:
    """Returns the step from which the last life continued."""
    return next((life.get("restored") or 0 for life in reversed(lives(run))), 0)


def verified_saves(folder: Path) -> int:
    """Returns how many saves to the durable store were verified in a trial."""
    with contextlib.suppress(OSError):
        lines = (folder / TIMES).read_text().splitlines()
        return sum(line.endswith(" save verified") for line in lines)
    return 0


def delays(folder: Path, run: Path) -> Delays:
    """Returns how long it took until the run trained again after its fault."""
    # A fault that only prepares the trial comes before the one that is meant.
    marks = [file.read_text().split() for file in folder.glob("injected *")]
    if not marks:
        return Delays()
    struck, struck_at = max((float(monotonic), float(wall)) for monotonic, wall in marks)
    restarts = []
    with contextlib.suppress(OSError):
        events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
        restarts = [event["time"] for event in events if event["event"] == "Restart"]
    reached: dict[str, list[float]] = {}
    with contextlib.suppress(OSError):
        for line in (folder / TIMES).read_text().splitlines():
            when, _, point = line.partition(" ")
            reached.setdefault(point, []).append(float(when))

    def after(times: Sequence[float], begin: float) -> float | None:
        return min((time - begin for time in times if time > begin), default=None)

    life = after(reached.get("life taken", []), struck)
    first = None
    if life is not None:
        first = after(reached.get("first step", []), struck + life)
    is_restarted = life is not None and after(restarts, struck_at) is not None
    return Delays(
        after(restarts, struck_at) if is_restarted else None,
        life,
        None if first is None or life is None else life + first,
    )


def noticed(output: str) -> str:
    """Returns the first line of the output that mentions the fault."""
    words = ("supervisor:", "WARNING", "warning:", "failed", "stopped by", "cannot be used")
    lines = (line.strip() for line in output.splitlines())
    return next((line[:160] for line in lines if any(word in line for word in words)), "")


def last_line(output: str) -> str:
    """Returns the last line of the output that is not empty."""
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no output"
