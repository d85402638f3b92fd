"""One save: written in the background, agreed on, committed by the manifest, and verified."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from dovetail.runtime.agreement import Agreement
from dovetail.runtime.checkpoints.folders import CheckpointName, Retention, StepFolders
from dovetail.runtime.checkpoints.layout import divide
from dovetail.runtime.checkpoints.manifest import NAME, Manifest
from dovetail.runtime.checkpoints.orbax_store import GroupWriter, saved_arrays, sums_on_disk
from dovetail.runtime.digest import add_sums, read_digests
from dovetail.runtime.lives import FencedError, Life
from dovetail.runtime.points import reach
from dovetail.utils import flush_tree, make_folder

_LOG = logging.getLogger("dovetail")


class SaveError(Exception):
    """A save failed, on this process or on another one."""


class BadStateError(SaveError):
    """The state is not finite, so it is not saved."""


def checked_sums(computed: Mapping[str, jax.Array], step: int) -> dict[str, str]:
    """Returns the digests of a state's arrays, by path.

    Raises:
        BadStateError: for an array that is not finite.
    """
    found = read_digests(computed)
    bad = sorted(path for path, digest in found.items() if not digest.finite)
    if bad:
        raise BadStateError(
            f"{bad[0]} is not finite after step {step}"
            + (f", nor are {len(bad) - 1} other arrays of the state" if bad[1:] else "")
        )
    return {path: digest.sums for path, digest in found.items()}


def cause_of(
    error: Exception, life: Life | None, computed: Mapping[str, jax.Array], step: int
) -> Exception:
    """Returns the cause of a failed save: a newer life, a bad state, or else the error.

    A newer life removes the files of this one.

    Args:
        error: the exception of the save.
        life: the record of this life, in process 0.
        computed: the digests of the state.
        step: the step of the state.
    """
    try:
        if life is not None:
            life.check()
    except FencedError as fenced:
        return fenced
    except OSError:  # so nobody knows; the save has failed anyway
        pass
    try:
        # All processes have the digests, so they find the same, although only one may have failed.
        checked_sums(computed, step)
    except BadStateError as bad:
        return bad
    except Exception:  # noqa: BLE001  # after a lost process, the digests cannot be read, either
        return error
    return error


_COPIES = 5
"""The number of host copies of a group, as benchmarks/save_memory.py measures it on a CPU: Orbax's
copy, TensorStore's compressed and buffered ones, and the slices on the devices."""


@dataclass(frozen=True)
class SaveSettings:
    """The settings that all saves of a run share."""

    agreement: Agreement
    life: Life | None
    """The record of this life, in process 0."""
    life_number: int
    max_host_bytes: int
    seconds: int
    retention: Retention

    @property
    def group_bytes(self) -> int:
        """The most bytes of the arrays that are copied to the host at once."""
        return max(self.max_host_bytes // _COPIES, 1)

    def check_life(self) -> None:
        """Raises a FencedError if a newer life of the run has started."""
        if self.life is not None:
            self.life.check()


class Save:
    """A save in progress. `result` waits for its end."""

    def __init__(
        self,
        folders: StepFolders,
        settings: SaveSettings,
        step: int,
        leaves: Mapping[str, jax.Array],
        computed: Mapping[str, jax.Array],
        topics: str,
        metric: float | None = None,
    ) -> None:
        """Copies the arrays; the state may be donated afterwards.

        Args:
            folders: the folders of all checkpoints.
            settings: shared by all saves.
            step: the step of the state.
            leaves: its arrays by path.
            computed: their digests, perhaps still being computed.
            topics: the prefix of the topics of the agreement.
            metric: the metric of an evaluator, if the best checkpoint is kept.
        """
        self._settings, self.step, self._topics, self._metric = settings, step, topics, metric
        self._folders, self._folder = folders, folders.new(step)
        reach("save begins")
        self._shapes = {
            path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for path, leaf in leaves.items()
        }
        self._digests = computed
        self._pieces = divide(leaves, settings.group_bytes)
        self._writer = GroupWriter(settings.agreement, topics, settings.seconds)
        self._failure: Exception | None = None
        try:
            make_folder(self._folder)
            self._writer.write(self._folder, leaves, self._pieces)
            reach("save copied")
        except BaseException:
            self._writer.close()
            raise
        self._thread = threading.Thread(target=self._run, name="dovetail-save")
        self._thread.start()

    def result(self) -> Exception | None:
        """Waits for the end; returns the cause of a failure, or None."""
        self._thread.join()
        return self._failure

    def _run(self) -> None:
        try:
            self._finish()
        except Exception as error:  # noqa: BLE001  # reported by the checkpointer
            self._failure = cause_of(error, self._settings.life, self._digests, self.step)
            self._settings.agreement.withdraw(self._topics, f"{type(error).__name__}: {error}")
        finally:
            self._writer.close()
        if self._failure is not None:
            self._free_disk()

    def _free_disk(self) -> None:
        """Removes the files of a failed save.

        With several processes the others may still write into the folder, so the next save removes
        it. No other life writes there, but a newer one may read a checkpoint that was committed
        before the failure.
        """
        if self._settings.agreement.count == 1 and not (self._folder / NAME).exists():
            shutil.rmtree(self._folder, ignore_errors=True)

    def _finish(self) -> None:
        self._writer.finish()
        reach("save written")
        sums = checked_sums(self._digests, self.step)
        manifest = Manifest(
            self.step,
            self._settings.life_number,
            saved_arrays(self._shapes, self._pieces, sums),
            self._metric,
        )
        self._agree("all is written", sums)
        reach("save agreed")
        self._commit(manifest)
        reach("save committed")
        self._verify(manifest)
        reach("save verified")
        if self._settings.life is not None:
            self._settings.life.saved(self.step)
        if self._settings.agreement.index == 0:
            self._retain()

    def _commit(self, manifest: Manifest) -> None:
        """The checkpoint is committed here: process 0 writes the manifest, and the others wait."""
        if self._settings.agreement.index == 0:
            flush_tree(self._folder)
            reach("save synced")
            self._settings.check_life()
            manifest.write(self._folder)
            self._check_after_commit()
        self._agree("it is committed", None)

    def _check_after_commit(self) -> None:
        """Reverts the commit if a newer life has started from an older step in the meantime."""
        try:
            self._settings.check_life()
        except FencedError as error:
            if error.restored not in (None, self.step):
                (self._folder / NAME).unlink(missing_ok=True)
            raise

    def _retain(self) -> None:
        """Removes old checkpoints. A failure costs disk space; this save has succeeded."""
        self._settings.check_life()
        try:
            self._folders.retain(self.step, self._settings.retention)
        except OSError as error:
            _LOG.warning("Old checkpoints in %s cannot be removed: %s.", self._folders, error)

    def _verify(self, manifest: Manifest) -> None:
        """Reads the files back, each process a share, and compares the digests."""
        settings = self._settings
        share = sorted(manifest.arrays)[settings.agreement.index :: settings.agreement.count]
        sums = sums_on_disk(self._folder, manifest, share, settings.group_bytes)
        wrong = [p for p in share if add_sums([sums[p]]) != manifest.arrays[p].digest]
        everywhere = settings.agreement.gather(
            f"{self._topics}it is verified", wrong, settings.seconds
        )
        damaged = sorted(path for wrong in everywhere for path in wrong)
        if damaged:
            if settings.agreement.index == 0:
                self._folders.set_aside([CheckpointName(self.step, settings.life_number)])
            raise SaveError(
                f"{damaged[0]} is not on disk as it was saved. The disk or its driver damages "
                "data, or copies on the devices differ; the checkpoint is set aside"
            )

    def _agree(self, question: str, value: Any) -> None:
        """Raises if another process has another value, or has failed."""
        settings = self._settings
        values = settings.agreement.gather(self._topics + question, value, settings.seconds)
        for index, other in enumerate(values):
            if other != values[0]:
                raise SaveError(f"process {index} has another state than process 0")
