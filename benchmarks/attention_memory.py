"""How much memory attention takes as sequences grow: temporaries of the compiled program.

    python benchmarks/attention_memory.py --sequence 4096 8192 16384 32768

Nothing is run, so it needs neither the memory nor the time. Where memory grows with the square of
the sequence, each line is four times the one before it; where it is linear, twice.
"""

from __future__ import annotations

import argparse
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.kernels import prefer
from dovetail.kernels.attention import Causal, Full, Mask, SlidingWindow, attention

MASKS: dict[str, Mask] = {"causal": Causal(), "full": Full(), "window": SlidingWindow(1024)}


def main() -> None:
    arguments = _arguments()
    print(f"{'mask':<8} {'sequence':>8} {'forward':>12} {'and backward':>12}")
    for name in arguments.mask:
        for sequence in arguments.sequence:
            megabytes = [_megabytes(name, sequence, back, arguments) for back in (False, True)]
            print(
                f"{name:<8} {sequence:>8} {megabytes[0]:>9.1f} MB {megabytes[1]:>9.1f} MB",
                flush=True,
            )


def _megabytes(name: str, sequence: int, backwards: bool, arguments: argparse.Namespace) -> float:
    def shape(heads: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((1, sequence, heads, arguments.head_width), arguments.dtype)

    tokens = jax.ShapeDtypeStruct((1, sequence), jnp.int32)

    def compute(q: Any, k: Any, v: Any, tokens: Any) -> Any:
        call = {"q_positions_BS": tokens, "kv_positions_BT": tokens}
        call |= {"q_segment_ids_BS": tokens, "kv_segment_ids_BT": tokens}

        def attend(*arrays: Any) -> Any:
            return attention(*arrays, mask=MASKS[name], aligned=True, **call)

        if not backwards:
            return attend(q, k, v)
        o, vjp = jax.vjp(attend, q, k, v)
        return o, vjp(o)

    kv = shape(arguments.kv_heads)
    with prefer(attention=arguments.implementation):
        program = jax.jit(compute).lower(shape(arguments.heads), kv, kv, tokens).compile()
    memory: Any = program.memory_analysis()
    return memory.temp_size_in_bytes / 1e6


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequence", type=int, nargs="+", default=[4096, 8192, 16384, 32768])
    parser.add_argument("--mask", nargs="+", choices=MASKS, default=["causal", "full", "window"])
    parser.add_argument("--implementation", default="blockwise")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--head-width", type=int, default=64)
    parser.add_argument("--dtype", default="float32")
    return parser.parse_args()


if __name__ == "__main__":
    main()
