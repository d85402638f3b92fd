"""Compares Dovetail's generation with a hand-written decode loop.

Both continue the same prompts greedily with the same small Llama-style model and parameters. The
hand-written loop only supports this case: prompts of one length, no stop conditions, no text, no
sampler. Rounds are interleaved, so that noise of the machine affects both equally.

    python benchmarks/generate.py
    python benchmarks/generate.py --rounds 5 --width 512 --layers 8 --vocab 32000
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.generate import Generator
from dovetail.models.llama import llama
from dovetail.module import initialize

LAYER = "decoder/stack/layer/"
Params = dict[str, jax.Array]


def main() -> None:
    sizes = _arguments()
    config = llama(
        vocab_size=sizes.vocab,
        width=sizes.width,
        num_layers=sizes.layers,
        num_heads=sizes.heads,
        hidden=sizes.hidden,
        tied=True,
    )
    params = initialize(config.build(), jax.random.key(0))
    shape = (sizes.batch, sizes.prompt)
    prompts = np.random.default_rng(0).integers(0, sizes.vocab, shape, dtype=np.int32)
    contenders = {
        "dovetail": _dovetail(Generator(config, params, length=sizes.length), prompts),
        "by hand": HandWritten(params, sizes.heads, sizes.length).starting_from(prompts),
    }
    tokens = {name: run(sizes.new) for name, run in contenders.items()}
    assert tokens["dovetail"] == tokens["by hand"], "the two generate different tokens"
    prefill, token = _time(contenders, sizes.rounds, sizes.new)
    _report(prefill, token, sizes)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for name, value in {
        "rounds": 15,
        "width": 256,
        "layers": 4,
        "heads": 4,
        "hidden": 688,
        "vocab": 8192,
        "batch": 4,
        "prompt": 128,
        "new": 65,
        "length": 256,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


def _dovetail(generator: Generator, prompts: np.ndarray) -> Callable[[int], list[list[int]]]:
    def run(new: int) -> list[list[int]]:
        results = generator.generate(list(prompts), max_new_tokens=new)
        return [result.tokens for result in results]

    return run


class HandWritten:
    """A decode loop for one case: stacked layers, and a KV cache in the layout of the matmuls."""

    def __init__(self, params: Params, heads: int, length: int) -> None:
        self.params, self.heads, self.length = params, heads, length
        self.prefill = jax.jit(self._prefill)
        self.decode = jax.jit(self._decode, donate_argnames="cache", static_argnames="count")

    def starting_from(self, prompts: np.ndarray) -> Callable[[int], list[list[int]]]:
        """Returns a function that generates a given number of new tokens."""

        def run(new: int) -> list[list[int]]:
            cache, token = self.prefill(self.params, prompts)
            tokens = np.asarray(token)[:, None]
            if new > 1:
                start = prompts.shape[1]
                cache, more = self.decode(self.params, cache, token, start, count=new - 1)
                tokens = np.concatenate([tokens, np.asarray(more)], axis=1)
            return tokens.tolist()

        return run

    def _prefill(self, params: Params, tokens: jax.Array) -> Any:
        rows, width = tokens.shape[0], params["decoder/norm/scale"].shape[0]
        layers = params[f"{LAYER}attention/key/weight"].shape[0]
        shape = (layers, rows, self.heads, self.length, width // self.heads)
        empty = jnp.zeros(shape)
        return self._forward(params, (empty, empty), tokens, 0)

    def _decode(self, params: Params, cache: Any, token: Any, start: Any, count: int) -> Any:
        def step(carry: Any, index: jax.Array) -> Any:
            cache, token = carry
            carry = self._forward(params, cache, token[:, None], start + index)
            return carry, carry[1]

        (cache, _), tokens = jax.lax.scan(step, (cache, token), jnp.arange(count))
        return cache, tokens.T

    def _forward(self, params: Params, cache: Any, tokens: jax.Array, start: Any) -> Any:
        layers = {k.removeprefix(LAYER): v for k, v in params.items() if k.startswith(LAYER)}
        x = params["decoder/embedding/weight"][tokens]

        def block(carry: Any, item: Any) -> Any:
            x, cache = carry
            index, weights = item
            y = _norm(x, weights["attention_residual/norm/scale"])
            output, cache = self._attention(y, weights, cache, index, start)
            x = x + output
            y = _norm(x, weights["feed_forward_residual/norm/scale"])
            gate = jax.nn.silu(y @ weights["feed_forward/gate/weight"])
            hidden = gate * (y @ weights["feed_forward/up/weight"])
            return (x + hidden @ weights["feed_forward/down/weight"], cache), None

        index = jnp.arange(cache[0].shape[0])
        (x, cache), _ = jax.lax.scan(block, (x, cache), (index, layers))
        last = _norm(x[:, -1], params["decoder/norm/scale"])
        return cache, jnp.argmax(last @ params["decoder/embedding/weight"].T, -1).astype(jnp.int32)

    def _attention(self, x: jax.Array, weights: Params, cache: Any, layer: Any, start: Any) -> Any:
        rows, count, _ = x.shape

        def heads(name: str) -> jax.Array:
            y = (x @ weights[f"attention/{name}/weight"]).reshape(rows, count, self.heads, -1)
            return y.swapaxes(1, 2)

        positions = start + jnp.arange(count)
        rotate = functools.partial(_rotate, positions=positions)
        q, new = rotate(heads("query")), (rotate(heads("key")), heads("value"))
        zero = jnp.zeros((), jnp.int32)
        index = (layer, zero, zero, start, zero)
        cache = tuple(
            jax.lax.dynamic_update_slice(old, value[None], index)
            for old, value in zip(cache, new, strict=True)
        )
        # Prefill only attends to the prompt itself.
        k, v = new if count > 1 else (array[layer] for array in cache)
        scores = jnp.einsum("bhsd,bhtd->bhst", q, k) * q.shape[-1] ** -0.5
        mask = jnp.arange(k.shape[2]) <= positions[:, None]
        probs = jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1)
        output = jnp.einsum("bhst,bhtd->bhsd", probs, v).swapaxes(1, 2)
        return output.reshape(rows, count, -1) @ weights["attention/output/weight"], cache


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def _rotate(x: jax.Array, positions: jax.Array) -> jax.Array:
    width = x.shape[-1]
    angles = positions[:, None] * 10_000.0 ** -(jnp.arange(0, width, 2) / width)
    cosine, sine = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)


def _time(contenders: dict[str, Any], rounds: int, new: int) -> tuple[Any, Any]:
    """Returns the seconds per round: to the first token, and per token after it."""
    prefill: dict[str, list[float]] = {name: [] for name in contenders}
    token: dict[str, list[float]] = {name: [] for name in contenders}
    for round_number in range(rounds + 1):
        for name in list(contenders)[:: 1 if round_number % 2 else -1]:
            seconds = []
            for count in (1, new):
                before = time.perf_counter()
                contenders[name](count)
                seconds.append(time.perf_counter() - before)
            prefill[name].append(seconds[0])
            token[name].append((seconds[1] - seconds[0]) / (new - 1))
    first, later = (
        {name: np.asarray(v[1:]) for name, v in times.items()} for times in (prefill, token)
    )
    return first, later


def _report(prefill: Any, token: Any, sizes: argparse.Namespace) -> None:
    for what, times in (("first token", prefill), ("next token", token)):
        medians = "  ".join(f"{n} {1e3 * np.median(t):8.3f} ms" for n, t in times.items())
        print(f"{what:<12} {medians}  ratio {_ratio(times):.3f}")
    result = {
        "prefill_ms": round(1e3 * float(np.median(prefill["dovetail"])), 3),
        "token_ms": round(1e3 * float(np.median(token["dovetail"])), 3),
        "prefill_ratio": round(_ratio(prefill), 4),
        "token_ratio": round(_ratio(token), 4),
        "tokens_per_second": round(sizes.batch / float(np.median(token["dovetail"])), 1),
        "rounds": sizes.rounds,
    }
    print(json.dumps(result))


def _ratio(times: dict[str, np.ndarray]) -> float:
    """Returns the median ratio of the rounds."""
    return float(np.median(times["dovetail"] / times["by hand"]))


if __name__ == "__main__":
    main()
