"""The old format of checkpoints: no manifest, committed by Orbax's rename, not verified."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from dovetail.runtime.checkpoints.compatibility import check_compatible

# The name that Orbax's CheckpointManager gave the state.
_ITEM = "default"


def is_committed(folder: Path) -> bool:
    """Returns whether a folder is a checkpoint of this format."""
    return (folder / _ITEM).is_dir() and (folder / "_CHECKPOINT_METADATA").is_file()


def read_state(folder: Path, like: Any) -> Any:
    """Reads the whole state."""
    import orbax.checkpoint as ocp

    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as reader:
        return reader.restore(folder / _ITEM, args=ocp.args.StandardRestore(like))


def read_parameters(folder: Path, like: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """Reads the arrays of `like` that are saved; each device reads its own shards."""
    import orbax.checkpoint as ocp

    handler: Any = ocp.PyTreeCheckpointHandler()  # typed for Orbax's own path class
    with ocp.Checkpointer(handler) as reader:
        tree = handler.metadata(folder / _ITEM).tree
        groups: dict[str, str] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for group in ("variables", "params", "ema"):  # averages come last, so that they win
            for path, saved in (tree.get(group) or {}).items():
                groups[path], shapes[path] = group, tuple(saved.shape)
        check_compatible(folder, like, shapes)
        item: dict[str, dict[str, Any]] = {}
        for path in like.keys() & shapes.keys():
            item.setdefault(groups[path], {})[path] = like[path]
        arguments = ocp.args.PyTreeRestore(
            item=item,
            restore_args=ocp.checkpoint_utils.construct_restore_args(item),
            partial_restore=True,
        )
        read = reader.restore(folder / _ITEM, args=arguments)
    return {path: array for group in read.values() for path, array in group.items()}
