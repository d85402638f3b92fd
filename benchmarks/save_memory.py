"""How much host memory does a save take, with and without a bound?

A state of one stacked array [layers, width, width] and a few small ones is saved, verified and
restored, each case in a process of its own. The benchmark prints the growth of the process's peak
memory beside `checkpointer.max_host_bytes`, and one line of JSON at the end. On a CPU the arrays of
the state are in the same memory; they are there before, so the growth is what a save adds.

    python benchmarks/save_memory.py
    python benchmarks/save_memory.py --gib 2 --bounds 0.125 0.5 2
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_GIB = 2**30
_WIDTH = 2048  # 16 MiB for each layer in float32


def main() -> None:
    """Measures each bound in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gib", type=float, default=1.0, help="the size of the stacked array")
    parser.add_argument("--bounds", type=float, nargs="+", default=[0.0625, 0.25, 1.0, 4.0])
    parser.add_argument("--bound", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bound is not None:
        print(json.dumps(_measure(arguments.gib, int(arguments.bound * _GIB))))
        return
    found = {}
    for bound in arguments.bounds:
        words = [sys.executable, __file__, "--gib", str(arguments.gib), "--bound", str(bound)]
        done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
        case = found[f"{bound} GiB"] = json.loads(done.stdout.splitlines()[-1])
        print(
            f"bound {bound:6.3f} GiB: save + {case['save_gib']:.3f} GiB, restore + "
            f"{case['restore_gib']:.3f} GiB, {case['save_s']:.1f} s and {case['restore_s']:.1f} s",
            flush=True,
        )
    print(json.dumps({"state_gib": arguments.gib, "bounds": found}))


def _measure(gib: float, max_host_bytes: int) -> dict[str, float]:
    """Returns by how much a save and a restore raise the peak, in GiB, and their seconds."""
    import jax
    import jax.numpy as jnp

    from dovetail.runtime import Checkpointer, abstract_state
    from dovetail.runtime.peak_memory import PeakGrowth

    layers = max(1, int(gib * _GIB) // (_WIDTH * _WIDTH * 4))

    def state(step: int) -> Any:
        keys = jax.random.split(jax.random.key(step), layers)
        make = jax.jit(jax.vmap(lambda key: jax.random.normal(key, (_WIDTH, _WIDTH))))
        return {"stack": make(keys), "bias": jnp.ones(_WIDTH), "step": jnp.int32(step)}

    with tempfile.TemporaryDirectory() as scratch:
        checkpointer = Checkpointer.Config(keep=1, max_host_bytes=max_host_bytes).build()
        checkpointer.open(Path(scratch))
        warm = {"stack": jnp.ones((2, 4, 4)), "bias": jnp.ones(4), "step": jnp.int32(0)}
        checkpointer.save(0, warm)  # loads what a first save loads
        checkpointer.finish()
        values = jax.block_until_ready(state(1))
        _return_free_memory()
        growth, began = PeakGrowth(), time.monotonic()
        checkpointer.save(1, values)
        assert checkpointer.finish()
        saved, save_s = growth.bytes() or 0, time.monotonic() - began
        here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        like = abstract_state(values, jax.tree.map(lambda _: here, values))
        total = sum(leaf.nbytes for leaf in jax.tree.leaves(values))
        jax.tree.map(lambda leaf: leaf.delete(), values)
        _return_free_memory()
        growth, began = PeakGrowth(), time.monotonic()
        restored = checkpointer.restore(like)
        assert restored is not None
        jax.block_until_ready(restored[1])
        restore_s = time.monotonic() - began
        # The restored state itself has to be there.
        more = max(0, (growth.bytes() or 0) - total)
    return {
        "save_gib": saved / _GIB,
        "restore_gib": more / _GIB,
        "save_s": save_s,
        "restore_s": restore_s,
    }


def _return_free_memory() -> None:
    """What was freed before would be used again, and hide what a save takes."""
    with contextlib.suppress(OSError, AttributeError):  # glibc alone has it
        ctypes.CDLL("libc.so.6").malloc_trim(0)


if __name__ == "__main__":
    main()
