"""Saves checkpoints in a run folder; `test_power_cut.py` traces its system calls.

python -m tests.runtime.power_cut_saver FOLDER [MUTATION]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

STEPS = (2, 4, 6)
SAVED = "saved-"
"""A folder of this name, with the step, is made when a save has returned."""


def state(step: int) -> dict[str, Any]:
    values = np.random.default_rng(step).normal(size=(2, 16)).astype(np.float32)
    return {"params": {"w": jnp.asarray(values), "b": jnp.ones(3)}, "step": jnp.int32(step)}


def checkpointer(folder: Path, local: bool) -> Any:
    from dovetail.runtime import Agreement, Checkpointer, take_life
    from dovetail.runtime.checkpoints.local.tier import LocalTier

    tier = LocalTier.Config(every=2, keep=1) if local else None
    # With a local tier, only every other step is saved to the run folder.
    built = Checkpointer.Config(every=4 if local else 2, keep=1, local=tier).build()
    built.open(folder / "checkpoints")
    built.start(Agreement(), take_life(folder / "lives"))
    return built


def break_it(mutation: str) -> None:
    """Takes a protection away, as a control."""
    from dovetail.runtime.checkpoints import saving
    from dovetail.runtime.checkpoints.folders import Retention
    from dovetail.utils import files

    if mutation == "files are not flushed":
        os.fsync = lambda descriptor: None
    elif mutation == "folders are not flushed":
        saving.flush_tree = lambda folder: None
        files.flush = lambda path: None
    elif mutation == "the old one is removed first":
        commit = saving.Save._commit

        def remove_first(self: Any, manifest: Any) -> None:
            self._folders.retain(self.step, Retention(1))
            commit(self, manifest)

        saving.Save._commit = remove_first  # type: ignore[method-assign]
    else:
        raise ValueError(mutation)


def main(folder: Path, tiers: str, mutation: str = "") -> None:
    if mutation:
        break_it(mutation)
    saving = checkpointer(folder, tiers == "local")
    for step in STEPS:
        saving.save(step, state(step))
        assert saving.finish()
        (folder / f"{SAVED}{step}").mkdir()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
