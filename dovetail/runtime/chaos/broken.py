"""Controls: runtimes that are broken on purpose. A harness that they pass proves nothing.

Each mutation takes one protection away. It is applied in the worker, at the first point that it
reaches, if DOVETAIL_CHAOS_BREAK names it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

BREAK = "DOVETAIL_CHAOS_BREAK"


def _no_digest() -> None:
    """Neither what was written nor what is read is verified."""
    from dovetail.runtime.checkpoints import restoring, saving

    restoring._damaged = lambda manifest, arrays: None
    saving.Save._verify = lambda self, manifest: None  # type: ignore[method-assign]


def _no_vote() -> None:
    """Each process decides alone which checkpoint it reads."""
    from dovetail.runtime.checkpoints.restoring import Restorer

    def gather(self: Any, topic: str, value: Any) -> list[Any]:
        return [value] * self._agreement.count

    Restorer._gather = gather  # type: ignore[method-assign]


def _no_step_in_the_manifest() -> None:
    """A checkpoint is believed to be that of the step that its folder is named after."""
    from dovetail.runtime.checkpoints import checkpointer, folders

    folders._check_name = lambda folder, manifest: None
    checkpointer._check_step = lambda step, arrays: None


def _no_fencing() -> None:
    """A life that was stopped goes on to commit, though a newer one has started."""
    from dovetail.runtime.lives import Life

    Life.check = lambda self: None  # type: ignore[method-assign]


MUTATIONS: dict[str, Callable[[], None]] = {
    "no digest": _no_digest,
    "no vote": _no_vote,
    "no step in the manifest": _no_step_in_the_manifest,
    "no fencing": _no_fencing,
}


def apply() -> None:
    """Applies the mutation of the environment."""
    MUTATIONS[os.environ[BREAK]]()
