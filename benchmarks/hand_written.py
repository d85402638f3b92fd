"""A Llama-style training step written by hand: no modules, no configs, just functions on arrays.

It takes the same parameters as Dovetail's model (a flat dict), so that both can start from the same
values. The fast one calls the same two kernels as Dovetail; the plain one is what most people would
write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.kernels.attention import Causal, attention
from dovetail.kernels.cross_entropy import cross_entropy

RATE, B1, B2, EPS, DECAY, CLIP = 1e-3, 0.9, 0.95, 1e-8, 0.1, 1.0

_LAYER = "decoder/stack/layer/"


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model."""

    vocab: int
    width: int
    layers: int
    heads: int
    hidden: int


def init(params: dict[str, jax.Array]) -> dict[str, Any]:
    """Returns the initial state."""
    zeros = {path: jnp.zeros_like(value) for path, value in params.items()}
    more = {path: jnp.zeros_like(value) for path, value in params.items()}
    return {"step": jnp.int32(0), "halted": jnp.int32(-1), "params": params, "m": zeros, "v": more}


def make_step(sizes: Sizes, fast: bool) -> Any:
    """Returns the training step."""

    def step(state: dict[str, Any], batch: Any) -> tuple[dict[str, Any], dict[str, jax.Array]]:
        def objective(params: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
            x = _forward(params, batch, sizes, fast)
            total = (_fused_loss if fast else _plain_loss)(
                x, params["decoder/embedding/weight"], batch
            )
            weight = batch.loss_weights.sum()
            return total / weight, weight

        (loss, weight), grads = jax.value_and_grad(objective, has_aux=True)(state["params"])
        squares = [jnp.sum(jnp.square(g)) for _, g in sorted(grads.items())]
        norm = jnp.sqrt(sum(squares[1:], squares[0]))
        bad = jnp.argmax(~jnp.isfinite(jnp.stack(squares)))
        good = jnp.isfinite(loss) & jnp.isfinite(norm) & (state["halted"] < 0)
        new = jax.lax.cond(good, lambda old: _adamw(old, grads, norm), lambda old: old, state)
        new["halted"] = jnp.where(good | (state["halted"] >= 0), state["halted"], state["step"])
        report = {"loss": loss, "weight": weight, "norm": norm, "finite": good, "bad": bad}
        return new, report | {"rate": jnp.float32(RATE)}

    return step


def _adamw(state: dict[str, Any], grads: dict[str, jax.Array], norm: jax.Array) -> dict[str, Any]:
    scale = jnp.minimum(1.0, CLIP / norm)
    count = state["step"] + 1
    first, second = 1 - B1**count, 1 - B2**count
    new: dict[str, Any] = {**state, "step": count, "params": {}, "m": {}, "v": {}}
    for path, grad in grads.items():
        grad = grad * scale
        m = B1 * state["m"][path] + (1 - B1) * grad
        v = B2 * state["v"][path] + (1 - B2) * grad * grad
        update = (m / first) / (jnp.sqrt(v / second) + EPS)
        if not path.endswith("scale"):
            update = update + DECAY * state["params"][path]
        new["params"][path] = state["params"][path] - RATE * update
        new["m"][path], new["v"][path] = m, v
    return new


def _forward(params: dict[str, jax.Array], batch: Any, sizes: Sizes, fast: bool) -> jax.Array:
    layers = {path: value for path, value in params.items() if path.startswith(_LAYER)}

    def block(x: jax.Array, layer: dict[str, jax.Array]) -> tuple[jax.Array, None]:
        weights = {path.removeprefix(_LAYER): value for path, value in layer.items()}
        y = _norm(x, weights["attention_residual/norm/scale"])
        x = x + _attention(y, weights, batch, sizes, fast)
        y = _norm(x, weights["feed_forward_residual/norm/scale"])
        gate = jax.nn.silu(y @ weights["feed_forward/gate/weight"])
        hidden = gate * (y @ weights["feed_forward/up/weight"])
        return x + hidden @ weights["feed_forward/down/weight"], None

    x = params["decoder/embedding/weight"][batch.tokens]
    x, _ = jax.lax.scan(block, x, layers)
    return _norm(x, params["decoder/norm/scale"])


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def _attention(x: jax.Array, weights: Any, batch: Any, sizes: Sizes, fast: bool) -> jax.Array:
    rows, length, _ = x.shape

    def heads(name: str) -> jax.Array:
        return (x @ weights[f"attention/{name}/weight"]).reshape(rows, length, sizes.heads, -1)

    query, key, value = heads("query"), heads("key"), heads("value")
    width = query.shape[-1]
    frequencies = 10_000.0 ** -(jnp.arange(0, width, 2) / width)
    angles = batch.positions[..., None] * frequencies
    cosine, sine = jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None]
    query, key = _rotate(query, cosine, sine), _rotate(key, cosine, sine)
    mixed = (_fast_attention if fast else _plain_attention)(query, key, value, batch)
    return mixed.reshape(rows, length, -1) @ weights["attention/output/weight"]


def _rotate(x: jax.Array, cosine: jax.Array, sine: jax.Array) -> jax.Array:
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)


def _fast_attention(query: jax.Array, key: jax.Array, value: jax.Array, batch: Any) -> jax.Array:
    return attention(
        query,
        key,
        value,
        mask=Causal(),
        q_positions_BS=batch.positions,
        kv_positions_BT=batch.positions,
        q_segment_ids_BS=batch.segment_ids,
        kv_segment_ids_BT=batch.segment_ids,
        aligned=True,
    )


def _plain_attention(query: jax.Array, key: jax.Array, value: jax.Array, batch: Any) -> jax.Array:
    scores = jnp.einsum("bshd,bthd->bhst", query, key) / jnp.sqrt(query.shape[-1])
    length = query.shape[1]
    seen = jnp.tril(jnp.ones((length, length), bool))
    same = batch.segment_ids[:, None, :, None] == batch.segment_ids[:, None, None, :]
    weights = jax.nn.softmax(jnp.where(seen & same, scores, -1e30), axis=-1)
    return jnp.einsum("bhst,bthd->bshd", weights, value)


def _fused_loss(x: jax.Array, table: jax.Array, batch: Any) -> jax.Array:
    return cross_entropy(x, table, batch.targets, batch.loss_weights).loss_sum


def _plain_loss(x: jax.Array, table: jax.Array, batch: Any) -> jax.Array:
    logits = x @ table.T
    chosen = jnp.take_along_axis(logits, batch.targets[..., None], -1)[..., 0]
    return jnp.sum((jax.nn.logsumexp(logits, -1) - chosen) * batch.loss_weights)
