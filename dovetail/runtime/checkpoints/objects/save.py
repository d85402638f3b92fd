"""One save to an object store: an object with the shards of each process, and the manifest."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from dovetail.runtime.checkpoints.folders import Retention
from dovetail.runtime.checkpoints.manifest import NAME, Manifest
from dovetail.runtime.checkpoints.objects.bucket import Bucket, ObjectStoreError
from dovetail.runtime.checkpoints.objects.checkpoints import ObjectSource, StoredCheckpoints
from dovetail.runtime.checkpoints.shards.save import ShardSave, ShardSaveSettings
from dovetail.runtime.checkpoints.shards.shard_file import ShardWriter
from dovetail.runtime.lives import FencedError
from dovetail.runtime.points import reach

_LOG = logging.getLogger("dovetail")


@dataclass(frozen=True)
class ObjectSaveSettings(ShardSaveSettings):
    """The settings that all saves to an object store share."""

    bucket: Bucket
    checkpoints: StoredCheckpoints
    retention: Retention


class ObjectSave(ShardSave):
    """A save to an object store in progress."""

    _settings: ObjectSaveSettings

    def _store(self) -> ObjectSource:
        """Uploads this process's shards."""
        bucket, name = self._settings.bucket, f"{self.name}/{self._settings.agreement.index}.shards"
        reach("save copied")
        with bucket.new_object(name) as stream:
            writer = ShardWriter(stream, self._about())
            self._write_to(writer)
            writer.finish()
        reach("save written")
        return ObjectSource(bucket, name)

    def _commit(self, manifest: Manifest) -> None:
        """Process 0 writes the manifest; the others learn whether it could."""
        reach("save agreed")
        problem = None
        if self._settings.agreement.index == 0:
            try:
                self._write_manifest(manifest)
            except FencedError:
                raise
            except Exception as error:  # noqa: BLE001  # all processes report it
                problem = f"the manifest is not written: {error}"
        self._agree_on_success("it is committed", problem)
        reach("save committed")
        reach("save verified")  # what is stored was read back before the commit
        if self._settings.life is not None:
            self._settings.life.saved(self.step)
        if self._settings.agreement.index == 0:
            self._retain()

    def _retain(self) -> None:
        """Removes old checkpoints. A failure costs storage; this save has succeeded."""
        if self._settings.life is not None:
            self._settings.life.check()
        try:
            self._settings.checkpoints.retain(self.step, self._settings.retention)
        except (ObjectStoreError, OSError) as error:
            _LOG.warning("Old checkpoints cannot be removed: %s.", error)

    def _write_manifest(self, manifest: Manifest) -> None:
        bucket, life = self._settings.bucket, self._settings.life
        name = f"{self.name}/{NAME}"
        reach("manifest written")
        bucket.write(name, manifest.text().encode())
        reach("manifest renamed")
        try:
            if life is not None:
                life.check()  # a newer life may have started in between
        except FencedError as error:
            if error.restored not in (None, self.step):  # else the newer life may read it
                bucket.remove([name])
            raise
