"""The folders of checkpoints: one per step, and what interrupted or damaged ones leave.

checkpoints/120/manifest.json   commits the checkpoint
checkpoints/120/0/              the first group of arrays, as Orbax writes it
checkpoints/damaged-100/        a checkpoint that could not be read, or was not what was saved
checkpoints/suspect-110/        a checkpoint of a time when a device may have computed wrong results
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dovetail.runtime.checkpoints import old_format
from dovetail.runtime.checkpoints.manifest import (
    NAME,
    DamagedCheckpointError,
    Manifest,
    read_manifest,
)
from dovetail.runtime.points import reach
from dovetail.utils import remove_folder

_LOG = logging.getLogger("dovetail")

_KEPT_ASIDE = 2
"""How many damaged checkpoints are kept, for whoever wants to know what happened."""


@dataclass(frozen=True)
class Entry:
    """A committed checkpoint; `manifest` is None in the format of before."""

    step: int
    manifest: Manifest | None
    problem: str | None = None


@dataclass(frozen=True)
class Retention:
    """Which checkpoints are kept.

    Attributes:
        keep: how many of the newest.
        keep_every: those at multiples of this step.
        best_mode: whether the best one by its metric is kept, and is the "min" or the "max".
    """

    keep: int
    keep_every: int | None = None
    best_mode: str | None = None


class StepFolders:
    """The folder of the checkpoints of a run."""

    def __init__(self, path: Path) -> None:
        """Reads nothing yet."""
        self.path = path.absolute()

    def __str__(self) -> str:
        """Returns the path, for messages."""
        return str(self.path)

    def of(self, step: int) -> Path:
        """Returns the folder of a step."""
        return self.path / str(step)

    def steps(self) -> list[int]:
        """Returns the steps of all committed checkpoints, oldest first; some may be damaged."""
        if not self.path.is_dir():
            return []
        committed = (entry for entry in self.path.iterdir() if _is_committed(entry))
        return sorted(int(entry.name) for entry in committed)

    def entries(self) -> list[Entry]:
        """Returns all committed checkpoints, newest first, and problems of their manifests."""
        return [self._entry(step) for step in reversed(self.steps())]

    def _entry(self, step: int) -> Entry:
        try:
            return Entry(step, read_manifest(self.of(step)))
        except (DamagedCheckpointError, OSError, KeyError, TypeError) as error:
            return Entry(step, None, str(error))

    def set_aside(self, steps: Iterable[int]) -> None:
        """Renames damaged checkpoints, so that their steps can be saved again; a few are kept."""
        self._rename(steps, "damaged")
        old = sorted(self.path.glob("damaged-*"), key=lambda folder: folder.stat().st_mtime)
        for folder in old[:-_KEPT_ASIDE]:
            shutil.rmtree(folder, ignore_errors=True)

    def distrust(self, steps: Iterable[int]) -> None:
        """Renames suspect checkpoints; a person may find that they are good, so all are kept."""
        self._rename(steps, "suspect")

    def _rename(self, steps: Iterable[int], name: str) -> None:
        for step in steps:
            aside = self.path / f"{name}-{step}"
            shutil.rmtree(aside, ignore_errors=True)  # an earlier one of the same step
            if self.of(step).is_dir():
                self.of(step).rename(aside)

    def remove_partial(self) -> None:
        """Removes the leftovers of interrupted saves, as far as possible, and says so."""
        for entry in self.path.iterdir() if self.path.is_dir() else []:
            # A step's number, perhaps with a suffix; other names are not checkpoints.
            step, dot, suffix = entry.name.partition(".")
            is_own = _is_step(step) and (not dot or suffix.startswith(("orbax-", "part-")))
            if is_own and not _is_committed(entry):
                _LOG.warning(
                    "Step %s has no complete checkpoint: %s has no %s. Its files are removed.",
                    step,
                    entry,
                    NAME,
                )
                shutil.rmtree(entry, ignore_errors=True)

    def retain(self, newest: int, policy: Retention) -> None:
        """Removes checkpoints that are not kept; never `newest`, which was just verified."""
        best = best_step(self.entries(), policy.best_mode) if policy.best_mode else None
        for step in superseded(self.steps(), newest, policy, best):
            # The manifest first: a checkpoint that is half removed is none.
            (self.of(step) / NAME).unlink(missing_ok=True)
            reach("checkpoint removed")
            remove_folder(self.of(step))


def superseded(steps: Sequence[int], newest: int, policy: Retention, best: int | None) -> list[int]:
    """Returns the steps, of those in ascending order, that a policy does not keep."""
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


def _is_committed(folder: Path) -> bool:
    return _is_step(folder.name) and ((folder / NAME).exists() or old_format.is_committed(folder))


def _is_step(name: str) -> bool:
    """Returns whether a name is that of a step: ASCII digits without leading zeros."""
    return re.fullmatch(r"0|[1-9][0-9]{0,18}", name) is not None
