"""The object store as a place for durable checkpoints: any URL that fsspec knows.

Orbax and TensorStore reach S3 and Google Cloud Storage, too, but not another endpoint, and they
verify no data. The format is the local tier's: shards by index range with checksums, so a
checkpoint fits any mesh and any number of processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax

from dovetail.config import REQUIRED, Component, ConfigError
from dovetail.runtime.agreement import Agreement
from dovetail.runtime.checkpoints.folders import CheckpointName, Entry, run_id
from dovetail.runtime.checkpoints.objects.bucket import Bucket, ObjectStoreError
from dovetail.runtime.checkpoints.objects.checkpoints import (
    ObjectEntry,
    ObjectSource,
    StoredCheckpoints,
)
from dovetail.runtime.checkpoints.objects.save import ObjectSave, ObjectSaveSettings
from dovetail.runtime.checkpoints.resharding import read_sharding
from dovetail.runtime.checkpoints.saving import SaveSettings
from dovetail.runtime.checkpoints.shards.assignment import ShardAssignment
from dovetail.runtime.checkpoints.shards.reading import ShardReader

_RUN_ID = "run-id"
_UNREACHABLE, _OTHER_RUN = "unreachable", "other run"


class ObjectStore(Component):
    """Keeps checkpoints under a URL, such as s3://bucket/runs/one or gs://bucket/runs/one."""

    class Config(Component.Config["ObjectStore"]):
        """The place of the checkpoints.

        Attributes:
            url: the prefix of all objects' names, one for each run. The library of the URL (s3fs,
                gcsfs, adlfs, ...) finds credentials and endpoints.
        """

        url: str = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._bucket = Bucket(config.url)
        self._checkpoints = StoredCheckpoints(self._bucket)
        self._assignment = ShardAssignment()
        self._folder = Path()

    def open(self, folder: Path) -> None:
        """Takes the run's default folder for checkpoints."""
        self._folder = folder

    def start(self, agreement: Agreement, seconds: int, life: int) -> None:
        """Refuses a URL that cannot be written, or holds the checkpoints of another run.

        Raises:
            ConfigError: if the URL is wrong.
            ObjectStoreError: if a run that has used it before cannot reach it now.
        """
        self._checkpoints.life = life
        problem = self._claim() if agreement.index == 0 else (None, "")
        kind, text = agreement.gather("object store: can be used", problem, seconds)[0]
        if kind == _OTHER_RUN or (kind == _UNREACHABLE and life <= 1):
            raise ConfigError(f"checkpointer.store.url: {text}")
        if kind == _UNREACHABLE:
            raise ObjectStoreError(text)

    def _claim(self) -> tuple[str | None, str]:
        """Writes the id of this run, or compares it; returns kind and text of an error, if any."""
        own = run_id(self._folder)
        try:
            try:
                found = self._bucket.read(_RUN_ID)
            except FileNotFoundError:
                found = self._claimed_by(own)
        except (ObjectStoreError, OSError) as error:
            text = str(error).removeprefix(f"{self._bucket.url}/{_RUN_ID} ")
            return _UNREACHABLE, (
                f"{self._bucket.url} {text}. Is the bucket there, and may this process write to it?"
            )
        other = found.decode(errors="replace").strip()
        if other == own:
            return None, ""
        return _OTHER_RUN, (
            f"{self._bucket.url} holds the checkpoints of another run ({other}; this one is "
            f"{own}). Choose another URL. If the folder of that run is lost and this one shall "
            f"continue it, write its id into {self._folder / _RUN_ID}."
        )

    def _claimed_by(self, own: str) -> bytes:
        """Writes the id of this run unless another one has just done so; returns who has it."""
        content = f"{own}\n".encode()
        try:
            self._bucket.create(_RUN_ID, content)
        except ObjectStoreError:  # another run was first; or the store cannot do this, or anything
            with contextlib.suppress(FileNotFoundError):
                return self._bucket.read(_RUN_ID)
            self._bucket.write(_RUN_ID, content)
        return self._bucket.read(_RUN_ID)

    def of(self, name: CheckpointName) -> str:
        """Returns the URL of a checkpoint."""
        return f"{self._bucket.url}/{name.step}-{name.life}"

    def steps(self) -> list[int]:
        """Returns the steps that have a manifest."""
        return self._checkpoints.steps()

    def entries(self) -> list[Entry]:
        """Returns all committed checkpoints, newest first."""
        return self._checkpoints.entries()

    def read_arrays(self, entry: Entry, like: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Reads arrays; processes with copies of an array download a shard each."""
        assert isinstance(entry, ObjectEntry)
        assert entry.manifest is not None
        sources = {
            owner: [ObjectSource(self._bucket, f"{entry.folder}/{owner}.shards")]
            for owner in entry.owners
        }
        with ShardReader(sources) as reader:
            return {
                path: reader.array(path, entry.manifest.arrays[path], read_sharding(struct, None))
                for path, struct in like.items()
            }

    def save(
        self,
        settings: SaveSettings,
        step: int,
        leaves: Mapping[str, jax.Array],
        digests: Mapping[str, jax.Array],
        topics: str,
        metric: float | None,
    ) -> ObjectSave:
        """Starts a save."""
        shared = ObjectSaveSettings(
            agreement=settings.agreement,
            life=settings.life,
            life_number=settings.life_number,
            run=self._bucket.url,
            max_host_bytes=settings.max_host_bytes,
            seconds=settings.seconds,
            bucket=self._bucket,
            checkpoints=self._checkpoints,
            retention=settings.retention,
        )
        slices = self._assignment.slices(leaves, settings.agreement.index, settings.max_host_bytes)
        return ObjectSave(shared, step, leaves, slices, digests, topics, metric)

    def set_aside(self, names: Iterable[CheckpointName]) -> None:
        """Gives manifests of damaged checkpoints another name."""
        self._checkpoints.set_aside(names)

    def distrust(self, steps: Iterable[int]) -> None:
        """Gives manifests of suspect checkpoints another name."""
        self._checkpoints.distrust(steps)

    def prepare(self, step: int) -> None:
        """Removes shards without a manifest, and the objects that the next save will write."""
        self._checkpoints.prepare(step)

    def __str__(self) -> str:
        """Returns the URL, for messages."""
        return self._bucket.url
