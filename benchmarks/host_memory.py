"""Device memory saved by host offload, in steps compiled for four TPU v5e chips without a TPU.

Each is a step of a Llama-style model in bfloat16, sharded over four chips (fsdp), with features
that save memory. Nothing is run: the numbers are the compiler's, for one chip. It needs the
compiler (`pip install 'dovetail[compile]'`).

    JAX_PLATFORMS=cpu python benchmarks/host_memory.py                # minutes
    JAX_PLATFORMS=cpu python benchmarks/host_memory.py --only small
"""

from __future__ import annotations

import argparse
import functools
import json
import re
from typing import Any, NamedTuple

from dovetail.config import apply_modifier
from dovetail.experiments import find_experiment
from dovetail.models.llama import llama
from dovetail.parallel import MeshLayout
from dovetail.plan.compiled import compile_step, lower_step, peak_bytes
from dovetail.targets import parse_target

TARGET = "tpu-v5e-4"
VOCABULARY, SEQUENCE, HEAD_WIDTH = 32_000, 2_048, 128
_REMAT = "remat:save=nothing"


class Size(NamedTuple):
    """A model, and the global batch size in rows."""

    layers: int
    width: int
    hidden: int
    rows: int


SIZES = {"small": Size(16, 1024, 2816, 16), "large": Size(24, 3072, 8192, 32)}
MODIFIERS = {
    "small": [(_REMAT,), ("offload:names=(layer_input)",), (_REMAT, "offload-optimizer")],
    "large": [(_REMAT,), (_REMAT, "offload-optimizer")],
}


def main() -> None:
    """Compiles the steps, and prints one JSON object as the last line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", choices=SIZES)
    only = parser.parse_args().only
    metrics: dict[str, Any] = {}
    for name in [only] if only else SIZES:
        print(f"{name}: {SIZES[name]}")
        for modifiers in MODIFIERS[name]:
            found = measure(SIZES[name], modifiers)
            print(f"  {', '.join(modifiers)}: {_described(found)}", flush=True)
            metrics[f"{name}: {', '.join(modifiers)}"] = found
    print(json.dumps(metrics))


def measure(size: Size, modifiers: tuple[str, ...]) -> dict[str, Any]:
    """Compiles a step; returns MB on the chip and on the host, or the out-of-memory error."""
    machine = parse_target(TARGET)
    compiled = compile_step(lower_step(_config(size, modifiers).build(), machine))
    if compiled.refusal:
        return {"refusal": _shortened(compiled.refusal)}
    memory = compiled.memory
    host = memory["host_temp_size_in_bytes"] + memory["host_argument_size_in_bytes"]
    return {"chip_mb": round(peak_bytes(memory, machine) / 1e6), "host_mb": round(host / 1e6)}


def _config(size: Size, modifiers: tuple[str, ...]) -> Any:
    config = find_experiment("tiny-lm").config()
    config.model = llama(
        width=size.width,
        num_layers=size.layers,
        num_heads=size.width // HEAD_WIDTH,
        hidden=size.hidden,
        vocab_size=VOCABULARY,
    )
    config.input.set(sequence_length=SEQUENCE, batch_size=size.rows)
    config = functools.reduce(apply_modifier, ("bf16", "optimizer:name=adamw", *modifiers), config)
    config.mesh = MeshLayout.Config(fsdp=4)
    return config


def _shortened(refusal: str) -> str:
    """Returns the required and the available memory, as the compiler reports them (GiB)."""
    found = re.search(r"\(([\d.]+)G\) exceeds available \w+ \(([\d.]+)G\)", refusal)
    return f"{found[1]} of {found[2]} GiB" if found else refusal.splitlines()[0]


def _described(found: dict[str, Any]) -> str:
    if "refusal" in found:
        return f"does not fit: {found['refusal']}"
    return f"{found['chip_mb']:,} MB on the chip, {found['host_mb']:,} MB on the host"


if __name__ == "__main__":
    main()
