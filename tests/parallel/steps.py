"""A few training steps of a tiny form under a mesh: what several devices must agree with one on."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from dovetail.config import apply_modifier, apply_overrides
from dovetail.experiments import experiments
from dovetail.learner import Accumulate
from dovetail.module import TokenBatch
from dovetail.parallel import MeshLayout

STEPS = 3
RATE = 0.1
TOLERANCE = 1e-5
# Recurrent layers exponentiate sums: the gradient of a small vector, one token's in the embedding,
# is off by up to 1.5e-5 of the largest a step.
OF_CHANGES = {"tiny-hybrid": 3e-5}
TWO_PARTS = Accumulate.Config(microbatches=2)

_STACK = "model.decoder.stack"
# One model of each kind, as small as its tiny form, in sizes that divide over up to eight devices.
MODELS: dict[str, dict[str, Any]] = {
    "tiny-lm": {f"{_STACK}.layer.attention.num_heads": 8, f"{_STACK}.num_layers": 4},
    "mixtral-8x7b": {
        f"{_STACK}.layer.attention.num_heads": 8,
        f"{_STACK}.layer.attention.num_kv_heads": 4,
        f"{_STACK}.layer.feed_forward.num_experts": 8,
        f"{_STACK}.num_layers": 4,
    },
    "tiny-hybrid": {
        f"{_STACK}.layers.0.layer.attention.num_heads": 4,
        f"{_STACK}.layers.0.num_layers": 4,
        f"{_STACK}.layers.1.layer.attention.num_heads": 4,
    },
    "deepseek-v3": {
        f"{_STACK}.layers.0.layer.attention.num_heads": 8,
        f"{_STACK}.layers.0.layer.attention.query.rank": 16,
        f"{_STACK}.layers.1.layer.attention.num_heads": 8,
        f"{_STACK}.layers.1.layer.attention.query.rank": 16,
        f"{_STACK}.layers.1.num_layers": 4,
    },
}


@dataclass(frozen=True)
class Steps:
    """What came of each step, and of all together; arrays by the path of their parameter.

    Attributes:
        losses: one a step.
        norms: of the gradient, one a step.
        gradient: of the first step, as it was clipped.
        changes: what all steps did to the parameters.
        largest: the largest number of each parameter after them.
    """

    losses: list[float]
    norms: list[float]
    gradient: dict[str, np.ndarray]
    changes: dict[str, np.ndarray]
    largest: dict[str, float]


def train(
    name: str,
    mesh: dict[str, int],
    gradients: Any = TWO_PARTS,
    modifiers: tuple[str, ...] = (),
    prefer: dict[str, str] | None = None,
) -> Steps:
    """Takes steps of SGD with momentum, which after the first step is the gradient itself."""
    program, batch = program_and_batch(name, mesh, gradients, modifiers, prefer)
    step, before = program.lowered.compile(), first_state(name)
    state = jax.device_put(before, program.state_shardings)
    losses, norms, gradient = [], [], {}
    for _ in range(STEPS):
        state, report = jax.block_until_ready(step(state, batch, program.hyperparameters))
        losses.append(float(report.loss))
        norms.append(float(report.gradient_norm))
        gradient = gradient or _whole(state.optimizer.trace)
    after = _whole(state.params)
    changes = {path: after[path] - before.params[path] for path in after}
    largest = {path: float(np.abs(value).max()) for path, value in after.items()}
    return Steps(losses, norms, gradient, changes, largest)


@functools.cache
def on_one_device(name: str, microbatches: int) -> Steps:
    """Returns what all must agree with."""
    return train(name, {"fsdp": 1}, Accumulate.Config(microbatches=microbatches))


def _whole(arrays: dict[str, jax.Array]) -> dict[str, np.ndarray]:
    """Returns arrays of which other processes may have parts."""
    return {
        path: np.asarray(value if value.is_fully_addressable else _gathered(value))
        for path, value in arrays.items()
    }


def _gathered(array: jax.Array) -> Any:
    from jax.experimental.multihost_utils import process_allgather

    return process_allgather(array, tiled=True)


@functools.cache
def first_state(name: str) -> Any:
    """Returns the state before the first step, made on one device: it is the same on any mesh."""
    trainer = _config(name, {"fsdp": 1}).build()
    state = trainer.program((jax.local_devices()[0],)).initialize()
    return jax.tree.map(np.asarray, state)


def program_and_batch(
    name: str,
    mesh: dict[str, int],
    gradients: Any = TWO_PARTS,
    modifiers: tuple[str, ...] = (),
    prefer: dict[str, str] | None = None,
) -> tuple[Any, Any]:
    """Returns the program of a tiny form, and a batch where the program wants it.

    `prefer` names implementations by op; one that cannot run is an error.
    """
    config = _config(name, mesh, modifiers)
    config.kernels.prefer = prefer or {}
    config.learner.gradients = gradients.clone()
    trainer = config.build()
    devices = jax.devices()[: int(np.prod(list(mesh.values())))]
    program = trainer.program(tuple(devices))
    batch = _batch(trainer.input.spec())
    return program, jax.device_put(batch, program.batch_shardings)


def _config(name: str, mesh: dict[str, int], modifiers: tuple[str, ...] = ()) -> Any:
    config = experiments()[name].tiny()
    sizes = {**MODELS[name], "input.batch_size": 16}
    config = apply_overrides(config, [f"{path}={value}" for path, value in sizes.items()])
    plain = ("fp32", "schedule:name=constant", f"optimizer:name=sgd,peak={RATE}")
    for modifier in (*plain, *modifiers):
        config = apply_modifier(config, modifier)
    return config.set(writers={}, evaluators={}, steps=100, mesh=MeshLayout.Config(**mesh))


def assert_same(got: Steps, expected: Steps, of_changes: float = TOLERANCE) -> None:
    """Compares losses and norms by their ratio, and arrays by the largest number of each.

    A change is what all steps added, of which each may be off; and a difference of parameters,
    which are rounded themselves.
    """
    np.testing.assert_allclose(got.losses, expected.losses, rtol=TOLERANCE)
    np.testing.assert_allclose(got.norms, expected.norms, rtol=TOLERANCE)
    for path, gradient in expected.gradient.items():
        allowed = TOLERANCE * float(np.abs(gradient).max())
        message = f"the gradient of {path}"
        np.testing.assert_allclose(
            got.gradient[path], gradient, rtol=0, atol=allowed, err_msg=message
        )
    for path, change in expected.changes.items():
        rounding = STEPS * np.finfo(np.float32).eps * expected.largest[path]
        allowed = STEPS * of_changes * float(np.abs(change).max()) + rounding
        np.testing.assert_allclose(got.changes[path], change, rtol=0, atol=allowed, err_msg=path)


def _batch(spec: Any) -> TokenBatch:
    """Returns random tokens: two documents a row, and some that do not count."""
    shape = spec.tokens.struct().shape
    random = np.random.default_rng(0)
    tokens = random.integers(1, 200, size=shape).astype(np.int32)
    cut = shape[1] * 2 // 5
    places = np.concatenate([np.arange(cut), np.arange(shape[1] - cut)]).astype(np.int32)
    weights = np.ones(shape, np.float32)
    weights[:, :3] = 0
    return TokenBatch(
        tokens=tokens,
        targets=np.roll(tokens, -1, 1),
        positions=np.tile(places, (shape[0], 1)),
        segment_ids=np.tile(np.where(np.arange(shape[1]) < cut, 1, 2), (shape[0], 1)).astype("i4"),
        loss_weights=weights,
        extras={
            name: np.ones(one.struct().shape, one.struct().dtype)
            for name, one in spec.extras.items()
        },
    )
