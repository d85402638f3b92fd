"""Peak memory of a train step, compared with a plain one written by hand.

Both train the same small Llama-style model. Ours is compiled with each pair of a plain or fused
loss and plain or blockwise attention; the one by hand has all logits and all scores at once.
Nothing is run. The numbers are the compiler's: temporaries + arguments + results - aliased buffers.

    python benchmarks/memory.py
    python benchmarks/memory.py --sequence 256 --vocab 4096     # a quick run
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
from typing import Any

import floor
import hand_written
import jax

from dovetail.kernels import prefer

# Common names, and our implementations.
LOSSES = {"plain": "reference", "fused": "chunked"}
ATTENTIONS = {"plain": "reference", "blockwise": "blockwise"}


def main() -> None:
    """Compiles the five steps, and prints one JSON object as the last line."""
    arguments = _arguments()
    names = ("vocab", "width", "layers", "heads", "hidden")
    sizes = hand_written.Sizes(**{name: getattr(arguments, name) for name in names})
    batch = floor.random_batch(arguments.batch, arguments.sequence, sizes.vocab)
    by_hand = _by_hand(sizes, batch)
    print(f"by hand, plain loss, plain attention: {by_hand:9.1f} MB")
    metrics = {"by_hand_mb": round(by_hand, 1)}
    for loss, attention in itertools.product(LOSSES, ATTENTIONS):
        ours = _ours(sizes, batch, cross_entropy=LOSSES[loss], attention=ATTENTIONS[attention])
        ratio = ours / by_hand
        print(f"ours, {loss} loss, {attention} attention: {ours:9.1f} MB, {ratio:.3f} of it")
        metrics[f"{loss}_loss_{attention}_attention_mb"] = round(ours, 1)
        metrics[f"{loss}_loss_{attention}_attention_ratio"] = round(ratio, 4)
    print(json.dumps(metrics))


def _by_hand(sizes: hand_written.Sizes, batch: Any) -> float:
    state = jax.eval_shape(hand_written.init, floor.program_of(sizes, batch).state_shapes.params)
    step = jax.jit(hand_written.make_step(sizes, fast=False), donate_argnums=0)
    return _megabytes(step.lower(state, batch))


def _ours(sizes: hand_written.Sizes, batch: Any, **kernels: str) -> float:
    program = floor.program_of(sizes, batch, kernels=functools.partial(prefer, **kernels))
    return _megabytes(program.lowered)


def _megabytes(lowered: Any) -> float:
    """Returns the peak: arguments, results and temporaries, aliased buffers counted once."""
    memory = lowered.compile().memory_analysis()
    given = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return (given + memory.temp_size_in_bytes) / 1e6


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for name, value in {
        "width": 256,
        "layers": 4,
        "heads": 4,
        "hidden": 688,
        "vocab": 32000,
        "sequence": 2048,
        "batch": 2,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


if __name__ == "__main__":
    main()
