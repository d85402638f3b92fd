"""The folders of checkpoints: one per step and life, and the leftovers of interrupted saves.

checkpoints/120-3/manifest.json   commits the checkpoint of step 120, which life 3 saved
checkpoints/120-3/0/              the first group of arrays, as Orbax writes it
checkpoints/damaged-100-2/        a checkpoint that could not be read, or was not what was saved
checkpoints/suspect-110-2/        saved while a device may have computed wrong results

Two lives never write into the same folder. A life changes only its own folders and those of earlier
lives. A process may be stopped in a save, and wake up after its successor has saved the same step:
it can damage only its own files. Folders without a life come from earlier versions, or from a
checkpointer outside of a run.
"""

from __future__ import annotations

import logging
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dovetail.runtime.checkpoints import old_format
from dovetail.runtime.checkpoints.manifest import (
    NAME,
    DamagedCheckpointError,
    Manifest,
    read_manifest,
)
from dovetail.runtime.points import reach
from dovetail.utils import TEMPORARY, atomic_write, make_folder, remove_folder

_LOG = logging.getLogger("dovetail")

_NAME = re.compile(r"(?P<step>0|[1-9][0-9]{0,18})(-(?P<life>[1-9][0-9]{0,8}))?")
_DAMAGED = "damaged"
_PAUSES = (0.2, 1.0)  # seconds


class CheckpointName(NamedTuple):
    """The step of a checkpoint, and the life that saved it; newer ones are greater."""

    step: int
    life: int

    def __str__(self) -> str:
        """Returns the name of its folder."""
        return f"{self.step}-{self.life}" if self.life else str(self.step)


@dataclass(frozen=True)
class Entry:
    """A committed checkpoint; a legacy one has no manifest, and belongs to no life (0)."""

    step: int
    life: int
    manifest: Manifest | None
    problem: str | None = None

    @property
    def name(self) -> CheckpointName:
        """Its step and its life. A step may have been saved by several lives."""
        return CheckpointName(self.step, self.life)


@dataclass(frozen=True)
class Retention:
    """Which checkpoints are kept.

    Attributes:
        keep: how many of the newest.
        keep_every: checkpoints at multiples of this step.
        best_mode: "min" or "max" keeps the checkpoint with the best metric.
        keep_damaged: how many of the newest damaged checkpoints.
    """

    keep: int
    keep_every: int | None = None
    best_mode: str | None = None
    keep_damaged: int = 2


class StepFolders:
    """The folder of the checkpoints of a run."""

    def __init__(self, path: Path, life: int = 0) -> None:
        """Takes the number of the life in a process that trains; reads nothing yet."""
        self.path, self.life = path.absolute(), life

    def __str__(self) -> str:
        """Returns the path, for messages."""
        return str(self.path)

    def of(self, name: CheckpointName) -> Path:
        """Returns the folder of a checkpoint."""
        return self.path / str(name)

    def new(self, step: int) -> Path:
        """Returns the folder into which this life saves a step."""
        return self.of(CheckpointName(step, self.life))

    def steps(self) -> list[int]:
        """Returns the steps of all committed checkpoints, oldest first; some may be damaged."""
        return sorted({name.step for name in self._committed()})

    def entries(self) -> list[Entry]:
        """Returns all committed checkpoints, newest first, and problems of their manifests."""
        return [self._entry(name) for name in sorted(self._committed(), reverse=True)]

    def _entry(self, name: CheckpointName) -> Entry:
        folder = self.of(name)
        try:
            manifest = _read_manifest(folder)
            if manifest is not None:
                _check_name(folder, manifest)
        except (DamagedCheckpointError, OSError, KeyError, TypeError) as error:
            return Entry(*name, None, str(error))
        return Entry(*name, manifest)

    def set_aside(self, names: Iterable[CheckpointName]) -> None:
        """Renames damaged checkpoints, so that their steps can be saved again."""
        self._rename(names, _DAMAGED)

    def distrust(self, steps: Iterable[int]) -> None:
        """Renames suspect checkpoints; a person may find that they are good, so all are kept."""
        wanted = set(steps)
        self._rename([name for name in self._own() if name.step in wanted], "suspect")

    def _rename(self, names: Iterable[CheckpointName], reason: str) -> None:
        for name in set(names).intersection(self._own()):
            aside = self.path / f"{reason}-{name}"
            shutil.rmtree(aside, ignore_errors=True)  # an earlier one of the same name
            self.of(name).rename(aside)

    def prepare(self, step: int) -> None:
        """Removes the leftovers of interrupted saves, and of this life's earlier save of a step."""
        if _is_committed(self.new(step)):
            self._remove(self.new(step))
        self._remove_partial()

    def _remove_partial(self) -> None:
        """Removes folders without a manifest, as far as possible, and says so."""
        for folder in self.path.iterdir() if self.path.is_dir() else []:
            base, dot, suffix = folder.name.partition(".")
            name = _parsed(base)
            if name is None or name.life > self.life or _is_committed(folder):
                continue
            if not dot or f".{suffix}".startswith((TEMPORARY, ".orbax-")):
                _LOG.warning(
                    "Step %d has no complete checkpoint: %s has no %s. Its files are removed.",
                    name.step,
                    folder,
                    NAME,
                )
                shutil.rmtree(folder, ignore_errors=True)

    def retain(self, newest: int, policy: Retention) -> None:
        """Removes old checkpoints, but never `newest`, which was just verified."""
        best = best_step(self.entries(), policy.best_mode) if policy.best_mode else None
        old = superseded(self.steps(), newest, policy, best)
        for name in self._own():
            if name.step in old or (name.step == newest and name.life < self.life):
                self._remove(self.of(name))
        damaged = sorted(self._damaged(), key=lambda folder: folder.stat().st_mtime)
        for folder in damaged[: max(len(damaged) - policy.keep_damaged, 0)]:
            shutil.rmtree(folder, ignore_errors=True)

    def _damaged(self) -> list[Path]:
        """Returns damaged checkpoints of this life and of earlier ones."""
        folders = self.path.glob(f"{_DAMAGED}-*")
        found = {folder: _parsed(folder.name.removeprefix(f"{_DAMAGED}-")) for folder in folders}
        return [each for each, name in found.items() if name is not None and name.life <= self.life]

    def _remove(self, folder: Path) -> None:
        """Removes a checkpoint, its manifest first: without one, the rest is no checkpoint."""
        (folder / NAME).unlink(missing_ok=True)
        reach("checkpoint removed")
        remove_folder(folder)

    def _own(self) -> list[CheckpointName]:
        """Returns the committed checkpoints of this life and of earlier ones."""
        return [name for name in self._committed() if name.life <= self.life]

    def _committed(self) -> list[CheckpointName]:
        folders = self.path.iterdir() if self.path.is_dir() else []
        names = (_parsed(folder.name) for folder in folders if _is_committed(folder))
        return [name for name in names if name is not None]


def _read_manifest(folder: Path) -> Manifest | None:
    """Reads a manifest; tries again after an error of the disk or the network, which may pass."""
    for pause in _PAUSES:
        try:
            return read_manifest(folder)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            raise
        except OSError:
            time.sleep(pause)
    return read_manifest(folder)


def run_id(checkpoints: Path) -> str:
    """Returns the random name of a run; a folder that is removed and made again gets another."""
    file = checkpoints / "run-id"
    try:
        return file.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        run = secrets.token_hex(8)
        make_folder(checkpoints)
        atomic_write(file, run + "\n")
        return run


def superseded(steps: Sequence[int], newest: int, policy: Retention, best: int | None) -> list[int]:
    """Returns the steps that a policy does not keep; the given steps are in ascending order."""
    older = [step for step in steps if step < newest]

    def is_kept(step: int) -> bool:
        return step == best or (policy.keep_every is not None and step % policy.keep_every == 0)

    return [s for s in older[: max(len(older) + 1 - policy.keep, 0)] if not is_kept(s)]


def best_step(entries: Iterable[Entry], mode: str) -> int | None:
    """Returns the step with the best metric; None if no checkpoint has one."""
    found = {
        entry.step: entry.manifest.metric
        for entry in entries
        if entry.manifest is not None and entry.manifest.metric is not None
    }
    choose = min if mode == "min" else max
    return choose(found, key=lambda step: found[step]) if found else None


def _check_name(folder: Path, manifest: Manifest) -> None:
    """Compares the manifest with the name of its folder, which may be a copy."""
    name = _parsed(folder.name)
    if name is None or manifest.step != name.step or name.life not in (0, manifest.life):
        raise DamagedCheckpointError(
            f"{folder} is a copy of the checkpoint of step {manifest.step} and life {manifest.life}"
        )


def _is_committed(folder: Path) -> bool:
    is_complete = (folder / NAME).exists() or old_format.is_committed(folder)
    return _parsed(folder.name) is not None and is_complete


def _parsed(name: str) -> CheckpointName | None:
    """Returns the step and the life that a folder is named after; None for other names."""
    found = _NAME.fullmatch(name)
    return None if found is None else CheckpointName(int(found["step"]), int(found["life"] or 0))
