"""Trains tiny models under mixtures of parallelisms and keeps what came; run once a process."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import jax

from dovetail.learner import Accumulate, OneForwardOneBackward
from dovetail.parallel import start_distributed
from tests.parallel.steps import train

# As `train` takes them. What stands first crosses processes: stages of a pipeline, rows of the
# batch, experts, a sequence.
MIXTURES: dict[str, tuple[Any, ...]] = {
    "1f1b x fsdp x tensor": (
        "tiny-lm",
        {"pipeline": 2, "fsdp": 2, "model": 2},
        OneForwardOneBackward.Config(microbatches=2),
    ),
    "data x fsdp x tensor": (
        "deepseek-v3",
        {"data": 2, "fsdp": 2, "model": 2},
        Accumulate.Config(microbatches=2),
    ),
    "experts": ("mixtral-8x7b", {"fsdp": 1, "expert": 8}, Accumulate.Config(microbatches=2)),
    "context": ("tiny-lm", {"fsdp": 1, "sequence": 8}, Accumulate.Config(microbatches=2)),
    "ring": (
        "deepseek-v3",
        {"fsdp": 1, "sequence": 8},
        Accumulate.Config(microbatches=2),
        (),
        {"attention": "ring"},
    ),
    "fsdp": ("tiny-hybrid", {"fsdp": 8}, Accumulate.Config(microbatches=2)),
}


def main(devices: int, path: str) -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
    processes = start_distributed()
    found = {name: train(*how) for name, how in MIXTURES.items()}
    Path(path).write_bytes(pickle.dumps(found))
    about = {"index": processes.index, "count": processes.count, "devices": jax.device_count()}
    print(json.dumps(about))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
