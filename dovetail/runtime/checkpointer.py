"""Checkpoints: saved in the background through Orbax, committed whole or not at all.

What is on disk does not depend on the mesh: each array is stored once, under its path. A save that
fails (a full disk) is reported and tried again at the next one; the checkpoints before it stay.
Reading changes nothing on disk, so that anyone may read a run that somebody else is training.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from dovetail.config import ConfigError, Part, did_you_mean

_LOG = logging.getLogger("dovetail")

# A network disk that stumbled has recovered after so long.
_SECONDS_BEFORE_SECOND_READ = 0.5

# The folder of the state inside a checkpoint, as Orbax's manager names it.
_ITEM = "default"


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
        self._damaged: list[int] = []

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
        try:
            self._set_damaged_aside()
            if step not in self.steps():  # else a complete run was started again
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

        Damaged ones that are newer are set aside by the first save, which only the owner makes.

        Args:
            like: the wanted state as shapes, types and shardings.
        """
        found = self._newest_good(lambda step: _read_state(self._item(step), like))
        if found is not None:
            self._damaged = [step for step in self.steps() if step > found[0]]
        return found

    def restore_parameters(
        self, like: Mapping[str, jax.ShapeDtypeStruct]
    ) -> tuple[int, dict[str, jax.Array]] | None:
        """Returns (step, arrays) of the newest checkpoint that can be read; None if there is none.

        Reads nothing else of the state: no optimizer. Parameters come averaged where the run keeps
        averages. What is wanted but not saved is left out.

        Args:
            like: the wanted parameters and variables by path, as shapes, types and shardings.
        """
        return self._newest_good(lambda step: _read_arrays(self._item(step), like))

    def _newest_good(self, read: Callable[[int], Any]) -> tuple[int, Any] | None:
        """Reads the newest checkpoint that can be read. A user's mistake is no damage."""
        steps = self.steps()
        for step in reversed(steps):
            try:
                return step, _read_twice(read, step)
            except ConfigError:
                raise
            except Exception as error:  # noqa: BLE001  # damage shows itself in many ways
                _LOG.warning(
                    "The checkpoint of step %d cannot be read (%s); trying the one before it.",
                    step,
                    _named(error),
                )
        if steps:
            raise ConfigError(
                f"No checkpoint in {self._opened()} can be read (steps {steps}). Move the "
                "folder away to start again from nothing."
            )
        return None

    def _set_damaged_aside(self) -> None:
        """Renames damaged checkpoints that were passed over, so that their steps can be saved."""
        if not self._damaged:
            return
        if jax.process_index() == 0:
            for step in self._damaged:
                aside = self._opened() / f"damaged-{step}"
                shutil.rmtree(aside, ignore_errors=True)  # the same step, damaged before
                (self._opened() / str(step)).rename(aside)
        if jax.process_count() > 1:
            from jax.experimental.multihost_utils import sync_global_devices

            sync_global_devices("dovetail: damaged checkpoints are set aside")
        self._damaged = []

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
            if jax.process_index() == 0:
                _remove_partial(folder)
            options = ocp.CheckpointManagerOptions(max_to_keep=self.keep)
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
        _LOG.warning(
            "Saving step %d failed: %s. Training goes on; the checkpoints before it are kept (%s), "
            "and the next save tries again.",
            step,
            _named(error),
            ", ".join(map(str, self.steps())) or "none yet",
        )

    def _item(self, step: int) -> Path:
        return self._opened().absolute() / str(step) / _ITEM

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
    """Removes what interrupted saves left, as far as it can be removed.

    Orbax would do it too, but fails if a thread of a failed save is still writing there.
    """
    for entry in folder.iterdir() if folder.is_dir() else []:
        # A step's number alone, or before Orbax's ending; anything else is somebody's own.
        if entry.name.partition(".")[0].isdigit() and not _is_committed(entry):
            shutil.rmtree(entry, ignore_errors=True)


def _read_twice(read: Callable[[int], Any], step: int) -> Any:
    """Reads again after a failure, which on a network disk may be over in a moment."""
    try:
        return read(step)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001  # if it is damage, the second attempt raises it
        _LOG.warning(
            "Reading the checkpoint of step %d failed (%s); trying once more.", step, _named(error)
        )
    time.sleep(_SECONDS_BEFORE_SECOND_READ)
    return read(step)


def _read_state(folder: Path, like: Any) -> Any:
    import orbax.checkpoint as ocp

    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as reader:
        return reader.restore(folder, args=ocp.args.StandardRestore(like))


def _read_arrays(folder: Path, like: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """Reads the wanted arrays that are saved, each straight to its shards."""
    import orbax.checkpoint as ocp

    handler: Any = ocp.PyTreeCheckpointHandler()  # it is annotated for a path type of its own
    with ocp.Checkpointer(handler) as reader:
        groups, shapes = _saved_arrays(handler.metadata(folder).tree)
        check_wanted(folder.parent, like, shapes)
        wanted: dict[str, dict[str, Any]] = {}
        for path in like.keys() & shapes.keys():
            wanted.setdefault(groups[path], {})[path] = like[path]
        arguments = ocp.args.PyTreeRestore(
            item=wanted,
            restore_args=ocp.checkpoint_utils.construct_restore_args(wanted),
            partial_restore=True,
        )
        read = reader.restore(folder, args=arguments)
    return {path: array for group in read.values() for path, array in group.items()}


def _saved_arrays(tree: Any) -> tuple[dict[str, str], dict[str, tuple[int, ...]]]:
    """Returns, for each saved parameter and variable, its group in the state and its shape."""
    groups: dict[str, str] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for group in ("variables", "params", "ema"):  # an average comes last, so it is preferred
        for path, saved in (tree.get(group) or {}).items():
            groups[path], shapes[path] = group, tuple(saved.shape)
    return groups, shapes


def check_wanted(
    place: Path,
    like: Mapping[str, jax.ShapeDtypeStruct],
    shapes: Mapping[str, tuple[int, ...]],
) -> None:
    """Refuses a checkpoint of another model, and names the first parameter that tells."""
    for path in sorted(like.keys() & shapes.keys()):
        if shapes[path] != tuple(like[path].shape):
            raise ConfigError(
                f"{path}: its shape in {place} is {shapes[path]}, but this model wants "
                f"{tuple(like[path].shape)}. Give the model the sizes of the one that was saved."
            )
    if like and not like.keys() & shapes.keys():
        first = min(like)
        raise ConfigError(
            f"{place} holds no parameter of this model; {first!r}, for one, is not there. "
            + did_you_mean(first, shapes)
        )


def _named(error: Exception) -> str:
    """Returns an error's type and first line, whole: it may be all that is known of a damage."""
    lines = str(error).strip().splitlines() or ["no message"]
    return f"{type(error).__name__}: {lines[0]}"
