"""Stores of durable checkpoints: the interface, and the run folder as the default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import jax

from dovetail.config import Component
from dovetail.runtime.agreement import Agreement
from dovetail.runtime.checkpoints.folders import CheckpointName, Entry, StepFolders
from dovetail.runtime.checkpoints.orbax_store import read_arrays
from dovetail.runtime.checkpoints.saving import Save, SaveSettings


class PendingSave(Protocol):
    """A save in progress."""

    step: int

    def result(self) -> Exception | None:
        """Waits for the end; returns the cause of a failure, or None."""
        ...


class CheckpointStore(Protocol):
    """Stores checkpoints by step. Every process of a run has one, for the same place."""

    def open(self, folder: Path) -> None:
        """Takes the folder of the run's checkpoints; reads and writes nothing yet."""
        ...

    def start(self, agreement: Agreement, seconds: int, life: int) -> None:
        """Starts to train: all processes together check that the place is usable.

        Checkpoints of later lives than `life` are not changed: this process may have been stopped
        for a while, and another one continues the run.
        """
        ...

    def of(self, name: CheckpointName) -> Path | str:
        """Returns the place of a checkpoint."""
        ...

    def steps(self) -> list[int]:
        """Returns the steps of all committed checkpoints, oldest first; some may be damaged."""
        ...

    def entries(self) -> list[Entry]:
        """Returns all committed checkpoints, newest first, and problems of their manifests."""
        ...

    def read_arrays(self, entry: Entry, like: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Reads arrays of a checkpoint onto the devices.

        Each array has the sharding of its struct, or one for reading (`resharding.py`). This
        must not be a collective, because a process may fail to read.
        """
        ...

    def save(
        self,
        settings: SaveSettings,
        step: int,
        leaves: Mapping[str, jax.Array],
        digests: Mapping[str, jax.Array],
        topics: str,
        metric: float | None,
    ) -> PendingSave:
        """Starts a save; the arrays may be donated as soon as this returns."""
        ...

    def set_aside(self, names: Iterable[CheckpointName]) -> None:
        """Makes damaged checkpoints invisible, so that their steps can be saved again."""
        ...

    def distrust(self, steps: Iterable[int]) -> None:
        """Makes suspect checkpoints invisible, but keeps them: they may turn out to be good."""
        ...

    def prepare(self, step: int) -> None:
        """Removes what is in the way of a save of a step.

        Removes the leftovers of interrupted saves, as far as possible. An earlier checkpoint of
        this step and life is not known to be good, so it is removed, too.
        """
        ...


class RunFolderStore(Component):
    """Stores the checkpoints in the run folder, with Orbax.

    With several hosts, that folder is on shared storage.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._life = 0

    def open(self, folder: Path) -> None:
        """Takes the folder."""
        self.folders = StepFolders(folder, self._life)

    def start(self, agreement: Agreement, seconds: int, life: int) -> None:
        """Takes the number of the life; the run folder was made and locked before."""
        self._life = self.folders.life = life

    def of(self, name: CheckpointName) -> Path:
        """Returns the folder of a checkpoint."""
        return self.folders.of(name)

    def steps(self) -> list[int]:
        """Returns the steps that have a folder with a manifest."""
        return self.folders.steps()

    def entries(self) -> list[Entry]:
        """Returns all committed checkpoints, newest first."""
        return self.folders.entries()

    def read_arrays(self, entry: Entry, like: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Reads arrays with Orbax."""
        assert entry.manifest is not None
        return read_arrays(self.folders.of(entry.name), entry.manifest, like)

    def save(
        self,
        settings: SaveSettings,
        step: int,
        leaves: Mapping[str, jax.Array],
        digests: Mapping[str, jax.Array],
        topics: str,
        metric: float | None,
    ) -> PendingSave:
        """Starts a save with Orbax."""
        return Save(self.folders, settings, step, leaves, digests, topics, metric)

    def set_aside(self, names: Iterable[CheckpointName]) -> None:
        """Renames the folders to `damaged-*`."""
        self.folders.set_aside(names)

    def distrust(self, steps: Iterable[int]) -> None:
        """Renames the folders to `suspect-*`."""
        self.folders.distrust(steps)

    def prepare(self, step: int) -> None:
        """Removes folders without a manifest, and the folder that the next save will write."""
        self.folders.prepare(step)

    def __str__(self) -> str:
        """Returns the path, for messages."""
        return str(self.folders)
