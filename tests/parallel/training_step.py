"""Trains a tiny model under mixtures of parallelisms, and keeps what came of it."""

from __future__ import annotations

import json
import math
import pickle
import sys
from pathlib import Path
from typing import Any

import jax

from dovetail.parallel import start_distributed
from tests.parallel.steps import train
from tests.parallel.table import rows_of_processes


def mixtures(model: str) -> dict[str, dict[str, Any]]:
    """Returns the table's rows, over all of eight devices: what is left of them has more rows.

    Half of the devices are another process's: what stands first in the mesh crosses, be it stages
    of a pipeline, rows of the batch, experts or a sequence.
    """
    found = {}
    for name, how in rows_of_processes(model).items():
        left = 8 // math.prod(how["mesh"].values())
        found[name] = how | {"mesh": how["mesh"] | ({"data": left} if left > 1 else {})}
    return found


def main(model: str, devices: int, path: str) -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
    processes = start_distributed()
    found = {name: train(model, **how) for name, how in mixtures(model).items()}
    Path(path).write_bytes(pickle.dumps(found))
    about = {"index": processes.index, "count": processes.count, "devices": jax.device_count()}
    print(json.dumps(about))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
