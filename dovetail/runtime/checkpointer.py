"""Checkpoints: saved in the background through Orbax, committed whole or not at all.

What is on disk does not depend on the mesh: each array is stored once, under its path. A save that
fails (a full disk) is reported and tried again at the next one; the checkpoints before it stay.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import jax

from dovetail.config import ConfigError, Part

_LOG = logging.getLogger("dovetail")


class Checkpointer(Part):
    """Saves the training state every so many steps, and finds the newest good one again."""

    class Config(Part.Config["Checkpointer"]):
        """How often to save, and how many to keep."""

        every: int = 500
        keep: int = 2

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.every < 1 or config.keep < 1:
            raise ConfigError(
                f"checkpointer: every={config.every} and keep={config.keep} must be at least 1."
            )
        self.every, self.keep = config.every, config.keep
        self._folder: Path | None = None
        self._manager: Any = None
        self._pending: int | None = None
        self._failure: Exception | None = None

    def open(self, folder: Path) -> None:
        """Says where checkpoints live. Nothing is read or written yet."""
        self._folder = folder

    def due(self, step: int) -> bool:
        """Says whether a save is due after this step."""
        return step % self.every == 0

    def save(self, step: int, state: Any) -> None:
        """Begins to save in the background; a failure is reported, never raised."""
        self._finish_pending()
        self._failure = None
        if step in self.steps():  # a run that was complete already was started again
            return
        try:
            self._start(step, state)
        except Exception as error:  # noqa: BLE001  # whatever the disk says, training goes on
            self._report(step, error)

    def finish(self) -> bool:
        """Waits for the last save, and says whether it reached the disk."""
        self._finish_pending()
        if self._manager is not None:
            self._manager.close()
            self._manager = None
        return self._failure is None

    def steps(self) -> list[int]:
        """Returns the steps of all committed checkpoints, oldest first."""
        folder = self._opened()
        if not folder.is_dir():
            return []
        return sorted(int(entry.name) for entry in folder.iterdir() if _is_committed(entry))

    def restore(self, like: Any) -> tuple[int, Any] | None:
        """Returns (step, state) of the newest checkpoint that can be read; None if there is none.

        Args:
            like: the wanted state as shapes, types and shardings.
        """
        for step in reversed(self.steps()):
            try:
                state = self._read(step, like)
                self._set_aside_after(step)
                return step, state
            except Exception as error:  # noqa: BLE001  # damage shows itself in many ways
                _LOG.warning(
                    "The checkpoint of step %d cannot be read (%s); trying the one before it.",
                    step,
                    _first_line(error),
                )
        if self.steps():
            raise ConfigError(
                f"No checkpoint in {self._opened()} can be read (steps {self.steps()}). Move the "
                "folder away to start again from nothing."
            )
        return None

    def _set_aside_after(self, step: int) -> None:
        """Renames damaged checkpoints that were passed over, so that their steps can be saved."""
        for later in [saved for saved in self.steps() if saved > step]:
            (self._opened() / str(later)).rename(self._opened() / f"damaged-{later}")

    def _start(self, step: int, state: Any) -> None:
        import orbax.checkpoint as ocp

        manager = self._open_manager()
        manager.save(step, args=ocp.args.StandardSave(state), force=True)
        self._pending = step

    def _open_manager(self) -> Any:
        if self._manager is None:
            import orbax.checkpoint as ocp

            folder = self._opened()
            folder.mkdir(parents=True, exist_ok=True)
            options = ocp.CheckpointManagerOptions(
                max_to_keep=self.keep, cleanup_tmp_directories=True
            )
            self._manager = ocp.CheckpointManager(folder.absolute(), options=options)
        return self._manager

    def _finish_pending(self) -> None:
        if self._pending is None or self._manager is None:
            return
        step, self._pending = self._pending, None
        try:
            self._manager.wait_until_finished()
            self._manager.check_for_errors()
        except Exception as error:  # noqa: BLE001  # as in save()
            self._report(step, error)

    def _report(self, step: int, error: Exception) -> None:
        """Remembers and reports a failed save, and starts the next one with a fresh manager."""
        self._failure, self._manager, self._pending = error, None, None
        _remove_partial(self._opened())
        _LOG.warning(
            "Saving step %d failed: %s. Training goes on; the checkpoints before it are kept (%s), "
            "and the next save tries again.",
            step,
            _first_line(error),
            ", ".join(map(str, self.steps())) or "none yet",
        )

    def _read(self, step: int, like: Any) -> Any:
        import orbax.checkpoint as ocp

        with ocp.CheckpointManager(self._opened().absolute()) as manager:
            return manager.restore(step, args=ocp.args.StandardRestore(like))

    def _opened(self) -> Path:
        if self._folder is None:
            raise RuntimeError("Checkpointer.open(folder) comes first.")
        return self._folder


def abstract_state(state: Any, shardings: Any) -> Any:
    """Returns a state as shapes, types and shardings, for restoring into."""

    def struct(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(struct, state, shardings)


def _is_committed(entry: Path) -> bool:
    # Orbax writes into a folder with a temporary name, and renames it when all is written.
    return entry.name.isdigit() and (entry / "_CHECKPOINT_METADATA").is_file()


def _remove_partial(folder: Path) -> None:
    for entry in folder.iterdir() if folder.is_dir() else []:
        temporary = entry.is_dir() and not _is_committed(entry)
        if temporary and not entry.name.startswith("damaged-"):
            shutil.rmtree(entry, ignore_errors=True)


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]
