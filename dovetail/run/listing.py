"""Lists the runs of a folder: what each one changes, how far it is, and how good."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dovetail.config import ConfigError, RunError, did_you_mean
from dovetail.run.naming import RUNS
from dovetail.runtime import RunFolder, StepFolders, read_metrics
from dovetail.utils import remove_folder

if TYPE_CHECKING:
    from dovetail.runtime.goodput import Goodput

RunState = Literal["running", "complete", "stopped", "imported", "empty", "damaged"]


@dataclass(frozen=True)
class RunSummary:
    """One run, without its config or parameters.

    Attributes:
        path: its folder.
        experiment: the name of the experiment; empty if it is not known.
        changes: what differs from the experiment, as it was typed.
        state: running (a process trains it), complete, stopped (before its last step), imported
            (not trained yet), empty (nothing was logged or saved), or damaged.
        step: the last logged step.
        steps: the number of steps; None if it is not known.
        loss: the last logged loss.
        age_s: seconds since the run last wrote something.
        problem: what is damaged.
    """

    path: Path
    experiment: str
    changes: tuple[str, ...]
    state: RunState
    step: int
    steps: int | None
    loss: float | None
    age_s: float
    problem: str = ""

    def matches(self, words: Sequence[str]) -> bool:
        """Says whether every word is in its name, experiment, changes or state."""
        text = " ".join([self.path.name, self.experiment, *self.changes, self.state])
        return all(word.lower() in text.lower() for word in words)


def list_runs(folder: Path, words: Sequence[str] = ()) -> list[RunSummary]:
    """Returns the runs of a folder that match all words, the newest first."""
    if not folder.is_dir():
        return []
    found = [summarize_run(path) for path in folder.iterdir() if _is_run(path)]
    return sorted((run for run in found if run.matches(words)), key=lambda run: run.age_s)


def summarize_run(path: Path) -> RunSummary:
    """Returns the summary of a run folder; a damaged one is part of the summary."""
    folder = RunFolder(path)
    entries = read_metrics(folder.metrics)
    steps = [entry for entry in entries if entry.get("loss") is not None]
    try:
        about, problem = folder.about(), ""
    except RunError as error:
        about, problem = {}, str(error)
    # A training loop of one's own may write no metrics, and a checkpointer of one's own no folders.
    logged = max((entry["step"] for entry in entries), default=0)
    step = logged or about.get("step") or _saved_step(folder)
    total = _total_steps(folder) or (steps[-1].get("steps") if steps else None)
    return RunSummary(
        path=path,
        experiment=str(about.get("experiment", "")),
        changes=_changes(about),
        state=_state(folder, about, problem, step, total),
        step=step,
        steps=total,
        loss=steps[-1]["loss"] if steps else None,
        age_s=max(0.0, time.time() - _last_change(folder)),
        problem=problem,
    )


def delete_run(path: Path) -> None:
    """Deletes a run folder, unless a process is training it."""
    folder = RunFolder(path)
    if not _is_run(path):
        raise RunError(f"{path} is not a run folder: it has no run.json. Nothing is deleted.")
    if folder.is_locked():
        raise RunError(f"{path}: a process is writing to this run. Stop it first.")
    remove_folder(path)


def run_path(name: str | Path, folder: Path = RUNS) -> Path:
    """Returns the folder of a run that is named by its path, or by its name in a folder of runs."""
    path, below = Path(name), folder / name
    return below if not _is_run(path) and _is_run(below) else path


def find_run(name: str, folder: Path) -> Path:
    """Returns the folder of a run, as `run_path` does; names similar ones if there is none."""
    path = run_path(name, folder)
    if _is_run(path):
        return path
    names = [run.path.name for run in list_runs(folder)]
    raise ConfigError(f"{name} is not a run folder. {did_you_mean(name, names)}")


def listed_run(name: str, folder: Path) -> Path:
    """Returns the folder of a run by its name in a listed folder, or else as `find_run` does."""
    below = folder / name
    return below if _is_run(below) else find_run(name, folder)


def run_goodput(path: Path) -> Goodput:
    """Returns the time of a run by class. Unlike `Run.goodput`, it needs no package of the run."""
    from dovetail.runtime.goodput import goodput

    RunFolder(path).about()  # an error if it is no run, or was written by a newer version
    return goodput(path)


def _is_run(path: Path) -> bool:
    return (path / "run.json").is_file()


def _state(
    folder: RunFolder, about: dict[str, Any], problem: str, step: int, total: int | None
) -> RunState:
    if problem:
        return "damaged"
    if folder.is_locked():
        return "running"
    if not step:
        return "imported" if "imported" in about else "empty"
    return "complete" if total is not None and step >= total else "stopped"


def _saved_step(folder: RunFolder) -> int:
    """Returns the step of the newest checkpoint in the run folder; 0 if there is none."""
    return max(StepFolders(folder.checkpoints).steps(), default=0)


def _total_steps(folder: RunFolder) -> int | None:
    """Returns the number of steps that the config says, without reading all of it."""
    with contextlib.suppress(OSError):
        found = re.search(r"^steps = (\d+)$", (folder.path / "config.txt").read_text(), re.M)
        return int(found[1]) if found is not None else None
    return None


def _changes(about: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns features, target and overrides, in the order in which they apply."""
    target = [f"target={about['target']}"] if "target" in about else []
    found = (*about.get("features", ()), *target, *about.get("overrides", ()))
    return tuple(map(str, found))


def _last_change(folder: RunFolder) -> float:
    files = (folder.metrics, folder.path / "run.json")
    return max(file.stat().st_mtime for file in files if file.is_file())
