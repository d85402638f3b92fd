"""The checkpoints in an object store, by the names of objects.

    URL/run-id                    the random name of the run
    URL/120-3/0.shards            the shards that process 0 wrote, at step 120 in life 3
    URL/120-3/manifest.json       commits the checkpoint, with the digest of every array
    URL/100-2/manifest.damaged    a checkpoint that could not be read, or was not what was saved
    URL/110-2/manifest.suspect    saved while a device may have computed wrong results

An object cannot be renamed, so a checkpoint is set aside by another name of its manifest.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from dovetail.runtime.checkpoints.folders import (
    CheckpointName,
    Entry,
    Retention,
    best_step,
    superseded,
)
from dovetail.runtime.checkpoints.manifest import NAME, DamagedCheckpointError, parse_manifest
from dovetail.runtime.checkpoints.objects.bucket import Bucket
from dovetail.runtime.checkpoints.shards.reading import shard_of
from dovetail.runtime.checkpoints.shards.shard_file import Shard, ShardIndex, read_index
from dovetail.runtime.points import reach

_OBJECT = re.compile(
    r"(?P<folder>(?P<step>0|[1-9][0-9]{0,18})-(?P<life>0|[1-9][0-9]{0,8}))/"
    r"((?P<owner>[0-9]{1,6})\.shards|manifest\.(?P<state>json|damaged|suspect))"
)


@dataclass(frozen=True)
class ObjectEntry(Entry):
    """A checkpoint in an object store."""

    folder: str = ""
    owners: tuple[int, ...] = ()
    """The processes whose shards are there."""


@dataclass
class _Folder:
    """The objects of one checkpoint."""

    step: int
    life: int
    objects: list[str]
    owners: list[int]
    states: set[str]

    @property
    def name(self) -> CheckpointName:
        return CheckpointName(self.step, self.life)


class StoredCheckpoints:
    """The checkpoints in a bucket. Every call lists the bucket once."""

    def __init__(self, bucket: Bucket) -> None:
        """Sends no request yet. `life` is set by a process that trains; see `CheckpointStore`."""
        self._bucket, self.life = bucket, 0

    def steps(self) -> list[int]:
        """Returns the steps of all committed checkpoints, oldest first."""
        return sorted({folder.step for folder in self._committed().values()})

    def entries(self) -> list[Entry]:
        """Returns all committed checkpoints, newest first, and problems of their manifests."""
        found = sorted(self._committed().items(), key=lambda item: item[1].name, reverse=True)
        return [self._entry(name, folder) for name, folder in found]

    def _entry(self, name: str, folder: _Folder) -> ObjectEntry:
        owners = tuple(sorted(folder.owners))
        try:
            manifest = parse_manifest(self._bucket.read(f"{name}/{NAME}"), f"{name}/{NAME}")
            if (manifest.step, manifest.life) != (folder.step, folder.life):
                raise DamagedCheckpointError(f"its manifest is that of step {manifest.step}")
        except (DamagedCheckpointError, FileNotFoundError, KeyError, TypeError) as error:
            return ObjectEntry(*folder.name, None, str(error), name, owners)
        return ObjectEntry(*folder.name, manifest, None, name, owners)

    def set_aside(self, names: Iterable[CheckpointName]) -> None:
        """Makes damaged checkpoints invisible."""
        self._rename_manifests(set(names), "damaged")

    def distrust(self, steps: Iterable[int]) -> None:
        """Makes suspect checkpoints invisible; keeps all."""
        wanted = set(steps)
        names = {each.name for each in self._own().values() if each.step in wanted}
        self._rename_manifests(names, "suspect")

    def _rename_manifests(self, wanted: Collection[CheckpointName], state: str) -> None:
        for name, folder in self._own().items():
            if folder.name in wanted:
                content = self._bucket.read(f"{name}/{NAME}")
                self._bucket.write(f"{name}/manifest.{state}", content)
                self._bucket.remove([f"{name}/{NAME}"])

    def prepare(self, step: int) -> None:
        """Removes the shards of interrupted saves, and this life's earlier save of a step."""
        for name, folder in self._folders().items():
            if folder.name == (step, self.life) and folder.states:
                self._remove(name, folder)
            elif not folder.states and folder.life <= self.life:
                self._bucket.remove(folder.objects)

    def retain(self, newest: int, policy: Retention) -> None:
        """Removes old checkpoints, but never `newest`, which was just verified."""
        best = best_step(self.entries(), policy.best_mode) if policy.best_mode else None
        old = set(superseded(self.steps(), newest, policy, best))
        for name, folder in self._own().items():
            if folder.step in old or (folder.step == newest and folder.life < self.life):
                self._remove(name, folder)
        folders = [each for each in self._folders().values() if each.states == {"damaged"}]
        damaged = [each for each in folders if each.life <= self.life]
        newest_last = sorted(damaged, key=lambda each: (each.life, each.step))
        for each in newest_last[: max(len(damaged) - policy.keep_damaged, 0)]:
            self._bucket.remove(each.objects)

    def _remove(self, name: str, folder: _Folder) -> None:
        """Removes a checkpoint, its manifest first: without one, the rest is no checkpoint."""
        self._bucket.remove([f"{name}/{NAME}"])
        reach("checkpoint removed")
        self._bucket.remove(folder.objects)

    def _own(self) -> dict[str, _Folder]:
        """Returns the committed checkpoints of this life and of earlier ones."""
        return {name: each for name, each in self._committed().items() if each.life <= self.life}

    def _committed(self) -> dict[str, _Folder]:
        folders = self._folders()
        return {name: folder for name, folder in folders.items() if "json" in folder.states}

    def _folders(self) -> dict[str, _Folder]:
        found: dict[str, _Folder] = {}
        for name in self._bucket.names():
            match = _OBJECT.fullmatch(name)
            if match is None:
                continue
            new = _Folder(int(match["step"]), int(match["life"]), [], [], set())
            folder = found.setdefault(match["folder"], new)
            folder.objects.append(name)
            if match["owner"] is not None:
                folder.owners.append(int(match["owner"]))
            else:
                folder.states.add(match["state"])
        return found


class ObjectSource:
    """The shards of one process in an object."""

    def __init__(self, bucket: Bucket, name: str) -> None:
        """Takes the name; the first read sends a request."""
        self._bucket, self._name = bucket, name
        self._about = f"{bucket.url}/{name}"

    @functools.cached_property
    def index(self) -> ShardIndex:
        """The index of the object."""
        read = functools.partial(self._bucket.read, self._name)
        return read_index(read, self._bucket.size(self._name), self._about)

    def read_shard(self, shard: Shard) -> np.ndarray:
        """Fetches all bytes of a shard at once."""
        content = self._bucket.read(self._name, shard.offset, shard.size) if shard.size else b""
        return shard_of(content, shard, self._about)

    def close(self) -> None:
        """Does nothing: no connection stays open."""
