"""Changing the data of a run in its middle: from the step that it continues from, or later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dovetail.config import diff, identity
from dovetail.data import CanChangeData

if TYPE_CHECKING:
    from dovetail.runtime import RunFolder
    from dovetail.trainer import Trainer

KEY = "data_changes"
"""In run.json: a list of the changes, each with its step and what differs."""


def accepted_change(folder: RunFolder, trainer: Trainer) -> dict[str, Any] | None:
    """Returns what is recorded of a change of the data; None if the identity is the same.

    Raises:
        ConfigError: for any other change of the identity, and for data that would have given the
            run other batches until now.
    """
    config: Any = trainer.config
    before: Any = folder.identity()
    now: Any = identity(config)
    differs = before is not None and before != now
    is_data = differs and before.clone(input=now.input) == now
    if not (is_data and isinstance(trainer.input, CanChangeData)):
        folder.check_identity(config)
        return None
    step = trainer.saved_step(folder.path)
    trainer.input.check_change(before.input, step)
    return {"step": step, "changes": [str(change) for change in diff(before, now)]}
