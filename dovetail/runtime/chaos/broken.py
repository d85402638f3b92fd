"""Controls: mutations that break the runtime on purpose, which the harness must notice.

Each mutation removes one protection. DOVETAIL_CHAOS_BREAK names the one to apply. The worker
applies it at the first point that it reaches.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

BREAK = "DOVETAIL_CHAOS_BREAK"


def _no_digest() -> None:
    """Verifies neither the written files nor the restored arrays."""
    from dovetail.runtime.checkpoints import restoring, saving

    restoring._damaged = lambda manifest, arrays: None
    saving.Save._verify = lambda self, manifest: None  # type: ignore[method-assign]


def _no_vote() -> None:
    """Lets each process choose a checkpoint by itself."""
    from dovetail.runtime.checkpoints.restoring import Restorer

    def gather(self: Any, topic: str, value: Any) -> list[Any]:
        return [value] * self._agreement.count

    Restorer._gather = gather  # type: ignore[method-assign]


def _no_step_in_the_manifest() -> None:
    """Trusts the step in a folder's name instead of the manifest."""
    from dovetail.runtime.checkpoints import checkpointer, folders

    folders._check_name = lambda folder, manifest: None
    checkpointer._check_step = lambda step, arrays: None


def _no_fencing() -> None:
    """Lets a life that was stopped commit after a newer one has started."""
    from dovetail.runtime.lives import Life

    Life.check = lambda self: None  # type: ignore[method-assign]


def _no_fsync() -> None:
    """Syncs neither the files of a save nor their names to disk."""
    from dovetail.runtime.checkpoints import saving
    from dovetail.utils import files

    saving.flush_tree = lambda folder: None  # type: ignore[attr-defined]
    files.flush = lambda path: None


MUTATIONS: dict[str, Callable[[], None]] = {
    "no digest": _no_digest,
    "no vote": _no_vote,
    "no step in the manifest": _no_step_in_the_manifest,
    "no fencing": _no_fencing,
    "no fsync": _no_fsync,
}


def apply() -> None:
    """Applies the mutation that the environment names."""
    MUTATIONS[os.environ[BREAK]]()
