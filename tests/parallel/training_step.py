"""Trains a tiny sharded model for three steps, and prints what came out; run once a process."""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.parallel import AxisRules, MeshLayout, Placement, constrain, placed, start_distributed

BATCH, EMBED, HIDDEN, VOCAB = 8, 16, 32, 24
AXES: dict[str, tuple[str | None, ...]] = {
    "embedding": ("vocab", "embed"),
    "up": ("embed", "mlp"),
    "down": ("mlp", "embed"),
}
SHAPES = {"embedding": (VOCAB, EMBED), "up": (EMBED, HIDDEN), "down": (HIDDEN, EMBED)}


def main(devices: int) -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
    processes = start_distributed()
    mesh = MeshLayout.Config(data=2, fsdp=2, model=2).build().mesh()
    placement = Placement(mesh, AxisRules.Config().build())

    random = np.random.default_rng(0)
    state = {name: random.normal(0, 0.3, shape) for name, shape in SHAPES.items()}
    params = {
        name: put(value, placement.sharding(AXES[name], value.shape, name))
        for name, value in state.items()
    }
    tokens = put(np.arange(BATCH) * 5 % VOCAB, placement.sharding(("batch",), (BATCH,)))

    @jax.jit
    def step(params: Any, tokens: jax.Array) -> tuple[Any, jax.Array]:
        with placed(placement):
            loss, gradients = jax.value_and_grad(loss_of)(params, tokens)
        return jax.tree.map(lambda p, g: p - 0.5 * g, params, gradients), loss

    losses = []
    for _ in range(3):
        params, loss = step(params, tokens)
        losses.append(float(loss))
    norm = jax.jit(lambda tree: jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree))))
    result = {"index": processes.index, "count": processes.count, "devices": jax.device_count()}
    print(json.dumps(result | {"losses": losses, "norm": float(norm(params))}))


def loss_of(params: Any, tokens: jax.Array) -> jax.Array:
    x = constrain(params["embedding"][tokens], "batch", "embed")
    hidden = constrain(jnp.tanh(x @ params["up"]), "batch", "mlp")
    scores = (x + hidden @ params["down"]) @ params["embedding"].T
    wanted = (tokens + 1) % VOCAB
    picked = jnp.take_along_axis(jax.nn.log_softmax(scores), wanted[:, None], axis=-1)
    return -jnp.mean(picked)


def put(value: Any, sharding: jax.sharding.Sharding) -> jax.Array:
    array = np.asarray(value, np.int32 if value.dtype.kind == "i" else np.float32)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


if __name__ == "__main__":
    main(int(sys.argv[1]))
