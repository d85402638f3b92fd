"""One save to the local tier: a file of this process's shards, and a copy of it at a peer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dovetail.runtime.checkpoints.local.sources import LocalSource
from dovetail.runtime.checkpoints.local.transfer import Peer
from dovetail.runtime.checkpoints.manifest import NAME, Manifest
from dovetail.runtime.checkpoints.shards.save import ShardSave, ShardSaveSettings
from dovetail.runtime.checkpoints.shards.shard_file import new_shard_file
from dovetail.runtime.points import reach
from dovetail.utils import atomic_write, make_folder


@dataclass(frozen=True)
class LocalSaveSettings(ShardSaveSettings):
    """The settings that all saves to the local tier share."""

    folder: Path
    peer: Peer | None
    retain: Callable[[int], None]
    """Removes old checkpoints, after the one of this step is committed."""


class LocalSave(ShardSave):
    """A save to the local tier in progress."""

    _settings: LocalSaveSettings

    def _store(self) -> LocalSource:
        """Writes this process's file, and sends a copy to its peer."""
        settings = self._settings
        folder = settings.folder / self.name
        make_folder(folder)
        file = folder / f"{settings.agreement.index}.shards"
        with new_shard_file(file, self._about()) as writer:
            self._write_to(writer)
        reach("local save written")
        if settings.peer is not None:
            settings.peer.put(file, f"{self.name}/{file.name}")
        reach("local save copied to a peer")
        return LocalSource(file)

    def _commit(self, manifest: Manifest) -> None:
        """Writes the manifest on every host.

        Any manifest is a commit: all files were complete before the first one was written.
        """
        problem = None
        try:
            atomic_write(self._settings.folder / self.name / NAME, manifest.text())
        except OSError as error:
            problem = f"the manifest cannot be written: {error}"
        reach("local save committed")
        self._agree_on_success("it is committed", problem)
        self._settings.retain(self.step)
