"""How much faster, and how much smaller, are the fast kernels than the plain reference?

Forward and backward passes of each op, interleaved so that noise of the machine affects both
equally. The default sizes are those of a small language model on a CPU.

    python benchmarks/kernels.py
    python benchmarks/kernels.py --rounds 3 --sequence 256     # a quick run
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.kernels import prefer
from dovetail.kernels.attention import Causal, attention
from dovetail.kernels.cross_entropy import cross_entropy
from dovetail.kernels.grouped_matmul import grouped_matmul

Case = tuple[Callable[..., Any], tuple[jax.Array, ...]]


def main() -> None:
    """Compares each op's implementations, and prints one JSON object as the last line."""
    arguments = _arguments()
    cases: dict[str, tuple[str, str, Case]] = {
        "attention": ("reference", "blockwise", _attention(arguments)),
        "cross_entropy": ("reference", "chunked", _cross_entropy(arguments)),
        "grouped_matmul": ("reference", "blocked", _grouped_matmul(arguments)),
    }
    results: dict[str, Any] = {}
    for op, (plain, fast, case) in cases.items():
        results |= _compare(op, plain, fast, case, arguments.rounds)
    print(json.dumps(results))


def _attention(arguments: argparse.Namespace) -> Case:
    batch, sequence = arguments.batch, arguments.sequence
    q = _random(0, batch, sequence, arguments.heads, arguments.head_width)
    k = _random(1, batch, sequence, arguments.kv_heads, arguments.head_width)
    v = _random(2, batch, sequence, arguments.kv_heads, arguments.head_width)
    positions = jnp.broadcast_to(jnp.arange(sequence), (batch, sequence))
    segment_ids = jnp.ones_like(positions)

    def step(
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
    ) -> Any:
        call = partial(
            attention,
            mask=Causal(),
            q_positions_BS=positions,
            kv_positions_BT=positions,
            q_segment_ids_BS=segment_ids,
            kv_segment_ids_BT=segment_ids,
            aligned=True,
        )
        o, vjp = jax.vjp(call, q, k, v)
        return o, vjp(o)

    return step, (q, k, v, positions, segment_ids)


def _cross_entropy(arguments: argparse.Namespace) -> Case:
    batch, sequence = arguments.batch, arguments.sequence
    x = _random(0, batch, sequence, arguments.width)
    weight = 0.05 * _random(1, arguments.vocab, arguments.width)
    targets = jax.random.randint(jax.random.key(2), (batch, sequence), 0, arguments.vocab)
    weights = jnp.ones((batch, sequence))

    def step(x: jax.Array, weight: jax.Array, targets: jax.Array, weights: jax.Array) -> Any:
        def loss(x: jax.Array, weight: jax.Array) -> jax.Array:
            return cross_entropy(x, weight, targets, weights).loss_sum / targets.size

        return jax.value_and_grad(loss, (0, 1))(x, weight)

    return step, (x, weight, targets, weights)


def _grouped_matmul(arguments: argparse.Namespace) -> Case:
    rows, groups = arguments.batch * arguments.sequence, arguments.groups
    x = _random(0, rows, arguments.width)
    weight = 0.05 * _random(1, groups, arguments.width, arguments.hidden)
    # Uneven, as routers are: the group of each row is drawn, with some likelier than others.
    chosen = jax.random.categorical(jax.random.key(3), _random(2, groups), shape=(rows,))
    group_sizes = jnp.bincount(chosen, length=groups)

    def step(x: jax.Array, weight: jax.Array, group_sizes: jax.Array) -> Any:
        result, vjp = jax.vjp(partial(grouped_matmul, group_sizes_X=group_sizes), x, weight)
        return result, vjp(result)

    return step, (x, weight, group_sizes)


def _compare(op: str, plain: str, fast: str, case: Case, rounds: int) -> dict[str, Any]:
    """Times two implementations in turns, and prints a line for each."""
    step, inputs = case
    programs = {name: _compile(op, name, step, inputs) for name in (plain, fast)}
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            start = time.perf_counter()
            jax.block_until_ready(program(*inputs))
            seconds[name].append(time.perf_counter() - start)
    results: dict[str, Any] = {}
    for name, program in programs.items():
        megabytes = program.memory_analysis().temp_size_in_bytes / 1e6
        median = 1e3 * float(np.median(seconds[name]))
        print(f"{op:<14} {name:<10} median {median:8.1f} ms   temporaries {megabytes:8.1f} MB")
        results[f"{op}_{name}_ms"] = round(median, 1)
        results[f"{op}_{name}_temporary_mb"] = round(megabytes, 1)
    ratio = float(np.median(np.divide(seconds[fast], seconds[plain])))
    print(f"{op:<14} {fast} / {plain}: {ratio:.2f} of the time (median over rounds)")
    return results | {f"{op}_ratio": round(ratio, 3)}


def _compile(op: str, name: str, step: Callable[..., Any], inputs: tuple[jax.Array, ...]) -> Any:
    with prefer(**{op: name}):
        program = jax.jit(step).lower(*inputs).compile()
    jax.block_until_ready(program(*inputs))
    return program


def _random(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-width", type=int, default=64)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    return parser.parse_args()


if __name__ == "__main__":
    main()
