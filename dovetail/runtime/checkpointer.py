"""Checkpoints: saved asynchronously with Orbax, and committed atomically.

A checkpoint does not depend on the mesh: each array is stored once, under its path. A failed save
(a full disk) is logged, the next save tries again, and earlier checkpoints stay. Reading changes
nothing on disk, so a run can be read while another process trains it.
"""

from __future__ import annotations

import logging
import re
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from dovetail.config import Component, ConfigError, did_you_mean

_LOG = logging.getLogger("dovetail")

# Long enough for a transient failure of a network disk.
_SECONDS_BEFORE_RETRY = 0.5

# The name that Orbax's CheckpointManager gives the state in a checkpoint.
_ITEM = "default"


class Checkpointer(Component):
    """Saves the training state periodically, and restores the newest intact checkpoint."""

    class Config(Component.Config["Checkpointer"]):
        """The interval between saves, and the number of checkpoints to keep."""

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
        """Sets the folder of the checkpoints; reads and writes nothing yet."""
        self._folder = folder

    def due(self, step: int) -> bool:
        """Says whether a save is due after this step."""
        return step % self.every == 0

    def save(self, step: int, state: Any) -> None:
        """Starts an asynchronous save; a failure is logged, never raised."""
        self._finish_pending()
        self._failure = None
        try:
            self._set_damaged_aside()
            if step not in self.steps():  # else a finished run was restarted
                self._start(step, state)
        except Exception as error:  # noqa: BLE001  # training continues after any error of the disk
            self._report(step, error)

    def finish(self) -> bool:
        """Waits for the last save, and returns whether it succeeded."""
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

        The next save renames newer, damaged checkpoints; only the process that trains saves.

        Args:
            like: the state as shapes, dtypes and shardings.
        """
        found = self._newest_intact(lambda step: _read_state(self._item(step), like))
        if found is not None:
            self._damaged = [step for step in self.steps() if step > found[0]]
        return found

    def restore_parameters(
        self, like: Mapping[str, jax.ShapeDtypeStruct]
    ) -> tuple[int, dict[str, jax.Array]] | None:
        """Returns (step, arrays) of the newest checkpoint that can be read; None if there is none.

        Does not read the optimizer state. Returns averaged parameters (EMA) if the run has them.
        Arrays of `like` that are not saved are left out.

        Args:
            like: parameters and variables by path, as shapes, dtypes and shardings.
        """
        return self._newest_intact(lambda step: _read_arrays(self._item(step), like))

    def _newest_intact(self, read: Callable[[int], Any]) -> tuple[int, Any] | None:
        """Reads the newest intact checkpoint. A ConfigError is the user's mistake, not damage."""
        steps = self.steps()
        for step in reversed(steps):
            try:
                return step, _read_with_retry(read, step)
            except ConfigError:
                raise
            except Exception as error:  # noqa: BLE001  # a damaged checkpoint can raise anything
                _LOG.warning(
                    "The checkpoint of step %d cannot be read (%s); trying the one before it.",
                    step,
                    _first_line(error),
                )
        if steps:
            raise ConfigError(
                f"No checkpoint in {self._opened()} can be read (steps {steps}). Move the "
                "folder away to start from scratch."
            )
        return None

    def _set_damaged_aside(self) -> None:
        """Renames damaged checkpoints that a restore skipped, so that their steps can be saved."""
        if not self._damaged:
            return
        if jax.process_index() == 0:
            for step in self._damaged:
                aside = self._opened() / f"damaged-{step}"
                shutil.rmtree(aside, ignore_errors=True)  # an earlier one of the same step
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
        """Records and logs a failed save; the next save starts with a new manager."""
        self._failure, self._manager, self._pending = error, None, None
        _LOG.warning(
            "Saving step %d failed: %s. Training continues, and the next save tries again. Earlier "
            "checkpoints are kept (%s).",
            step,
            _first_line(error),
            ", ".join(map(str, self.steps())) or "none yet",
        )

    def _item(self, step: int) -> Path:
        return self._opened().absolute() / str(step) / _ITEM

    def _opened(self) -> Path:
        if self._folder is None:
            raise RuntimeError("Call Checkpointer.open(folder) first.")
        return self._folder


def abstract_state(state: Any, shardings: Any) -> Any:
    """Returns a state as shapes, dtypes and shardings, to restore into."""

    def struct(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(struct, state, shardings)


def _is_committed(entry: Path) -> bool:
    # A checkpoint is committed by a rename: until then, its folder has a temporary name of Orbax.
    return _is_step(entry.name) and (entry / "_CHECKPOINT_METADATA").is_file()


def _is_step(name: str) -> bool:
    """Returns whether Orbax would write this name: ASCII digits without leading zeros."""
    return re.fullmatch(r"0|[1-9][0-9]{0,18}", name) is not None


def _remove_partial(folder: Path) -> None:
    """Removes the leftovers of interrupted saves, as far as possible.

    Orbax would do so, too, but fails if a thread of a failed save is still writing there.
    """
    for entry in folder.iterdir() if folder.is_dir() else []:
        # A step's number, perhaps with a suffix of Orbax; other names are not checkpoints.
        step, dot, suffix = entry.name.partition(".")
        is_own = _is_step(step) and (not dot or suffix.startswith("orbax-checkpoint-tmp"))
        if is_own and not _is_committed(entry):
            shutil.rmtree(entry, ignore_errors=True)


def _read_with_retry(read: Callable[[int], Any], step: int) -> Any:
    """Retries a failed read once: failures of a network disk can be transient."""
    try:
        return read(step)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001  # a damaged checkpoint raises it again
        _LOG.warning(
            "Reading the checkpoint of step %d failed (%s); retrying once.",
            step,
            _first_line(error),
        )
    time.sleep(_SECONDS_BEFORE_RETRY)
    return read(step)


def _read_state(folder: Path, like: Any) -> Any:
    import orbax.checkpoint as ocp

    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as reader:
        return reader.restore(folder, args=ocp.args.StandardRestore(like))


def _read_arrays(folder: Path, like: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """Reads those arrays of `like` that are saved, each device its own shards."""
    import orbax.checkpoint as ocp

    handler: Any = ocp.PyTreeCheckpointHandler()  # typed for Orbax's own path class
    with ocp.Checkpointer(handler) as reader:
        groups, shapes = _saved_arrays(handler.metadata(folder).tree)
        check_compatible(folder.parent, like, shapes)
        item: dict[str, dict[str, Any]] = {}
        for path in like.keys() & shapes.keys():
            item.setdefault(groups[path], {})[path] = like[path]
        arguments = ocp.args.PyTreeRestore(
            item=item,
            restore_args=ocp.checkpoint_utils.construct_restore_args(item),
            partial_restore=True,
        )
        read = reader.restore(folder, args=arguments)
    return {path: array for group in read.values() for path, array in group.items()}


def _saved_arrays(tree: Any) -> tuple[dict[str, str], dict[str, tuple[int, ...]]]:
    """Returns the group and the shape of each saved parameter and variable, by path."""
    groups: dict[str, str] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for group in ("variables", "params", "ema"):  # averages come last, so that they win
        for path, saved in (tree.get(group) or {}).items():
            groups[path], shapes[path] = group, tuple(saved.shape)
    return groups, shapes


def check_compatible(
    source: Path,
    like: Mapping[str, jax.ShapeDtypeStruct],
    shapes: Mapping[str, tuple[int, ...]],
) -> None:
    """Rejects the checkpoint of another model; names the first parameter that differs."""
    for path in sorted(like.keys() & shapes.keys()):
        if shapes[path] != tuple(like[path].shape):
            raise ConfigError(
                f"{path}: its shape in {source} is {shapes[path]}, but this model expects "
                f"{tuple(like[path].shape)}. Configure the model with the sizes of the saved one."
            )
    if like and not like.keys() & shapes.keys():
        first = min(like)
        raise ConfigError(
            f"{source} has no parameter of this model; {first!r}, for example, is missing. "
            + did_you_mean(first, shapes)
        )


def _first_line(error: Exception) -> str:
    """Returns an error's type and the first line of its message."""
    lines = str(error).strip().splitlines() or ["no message"]
    return f"{type(error).__name__}: {lines[0]}"
