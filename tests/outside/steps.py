"""Takes steps of a small language model, on one device or on a mesh of eight."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.experiments import find_experiment
from dovetail.learner import ConstantSchedule, TrainState

ONE: dict[str, int] = {}
EIGHT = {"data": 2, "fsdp": 2, "model": 2}


@dataclass(frozen=True)
class Steps:
    """The state after each step, and the loss of each."""

    states: list[TrainState]
    losses: list[float]
    reports: list[Any]


def take_steps(mesh: dict[str, int], steps: int, peak: float, **learner: Any) -> Steps:
    """Trains the tiny form of `tiny-lm` on one batch of random tokens, which it must learn."""
    config = find_experiment("tiny-lm").tiny()
    config.learner.set(schedule=ConstantSchedule.Config(peak=peak), **learner)
    config.mesh.set(**mesh)
    program = config.build().program(None if mesh else tuple(jax.devices()[:1]))
    batch = jax.device_put(random_batch(program.batch_spec), program.batch_shardings)
    step, state = program.lowered.compile(), program.initialize()
    found = Steps([], [], [])
    for _ in range(steps):
        state, report = step(state, batch, program.hyperparameters)
        found.states.append(jax.tree.map(jnp.copy, state))  # the state is donated
        found.losses.append(float(report.loss))
        found.reports.append(report)
    return found


def random_batch(spec: Any) -> Any:
    """Returns a batch of one document a row."""
    rows, length = spec.tokens.shape
    tokens = np.random.default_rng(0).integers(0, 64, (rows, length + 1), dtype=np.int32)
    return type(spec)(
        tokens=tokens[:, :-1],
        targets=tokens[:, 1:],
        positions=np.tile(np.arange(length, dtype=np.int32), (rows, 1)),
        segment_ids=np.ones((rows, length), np.int32),
        loss_weights=np.ones((rows, length), np.float32),
        extras={name: np.ones(leaf.shape, leaf.dtype) for name, leaf in spec.extras.items()},
    )


def bits(state: TrainState) -> dict[str, bytes]:
    """Returns everything that an update changes, bit for bit."""
    leaves = jax.tree_util.tree_flatten_with_path((state.step, state.params, state.optimizer))[0]
    return {jax.tree_util.keystr(path): np.asarray(leaf).tobytes() for path, leaf in leaves}
