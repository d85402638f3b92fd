"""An experiment on a recorded mixture, for processes that are started by a test."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dovetail.experiments import experiment
from tests.data.mixture.recording import mixture


def trainer() -> Any:
    from dovetail.models.llama import llama
    from dovetail.runtime import Checkpointer
    from dovetail.trainer import Trainer

    return Trainer.Config(
        model=llama(width=16, num_layers=1, num_heads=2, hidden=32),
        input=mixture(Path(os.environ["RECORDED_TEXTS"]), os.environ["RECORDED_LOG"]),
        checkpointer=Checkpointer.Config(every=2),
        steps=24,
    )


experiment("recorded-mixture", "a tiny model on a recorded mixture", tiny=trainer)(trainer)
