"""Takes steps of a small language model, in training and decoding, on one device or on eight."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dovetail
from dovetail.experiments import find_experiment
from dovetail.generate import with_kv_cache
from dovetail.generate.programs import decoding_placement
from dovetail.layers import TokenContext
from dovetail.learner import ConstantSchedule, TrainState
from dovetail.module import functional, parameter_specs
from dovetail.parallel import AxisRules, MeshLayout, Placement, use_placement
from tests.run.test_run import CHANGES, write_corpus

ONE: dict[str, int] = {}
EIGHT = {"data": 2, "fsdp": 2, "model": 2}


class OneDevice(MeshLayout):
    """A mesh of the first device, however many there are."""

    class Config(MeshLayout.Config):
        pass

    def mesh(self, devices: Any = None) -> jax.sharding.Mesh:
        return super().mesh(jax.devices()[:1])


def layout_on(mesh: Mapping[str, int]) -> MeshLayout.Config:
    """Returns the mesh of a run: `ONE` or `EIGHT`."""
    return MeshLayout.Config(**mesh) if mesh else OneDevice.Config()


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


def resumed_and_at_once(feature: str, folder: Path) -> list[list[float]]:
    """Returns the losses of a run that is saved and resumed in between, and of one that is not."""
    write_corpus(folder / "corpus")
    files = ("input.corpus=TextFiles", f"input.corpus.files={folder / 'corpus'}")
    experiment = dovetail.experiment("tiny-lm").override(*CHANGES, *files, "evaluators={}")
    # The rate must not depend on the number of steps.
    constant = experiment.override("learner.schedule=ConstantSchedule").with_features(feature)
    constant.train(steps=3, folder=folder / "resumed", progress=False)
    runs = [constant.train(steps=6, folder=folder / name, progress=False) for name in _NAMES]
    return [[entry["loss"] for entry in run.metrics()] for run in runs]


_NAMES = ("resumed", "at once")


def placement_on(mesh: Mapping[str, int]) -> Placement:
    """Returns the default rules on a mesh of these sizes."""
    return Placement(MeshLayout.Config(**mesh).build().mesh(), AxisRules.Config().build())


def shard_params(model: Any, params: Mapping[str, Any], placement: Placement) -> dict[str, Any]:
    """Puts parameters on the devices, sharded by their logical axes."""
    shardings = {
        path: placement.sharding(spec.axes, spec.shape, path)
        for path, spec in parameter_specs(model).items()
    }
    return jax.device_put(dict(params), shardings)


def decode_in_steps(
    config: Any,
    params: Any,
    tokens_BS: jax.Array,
    prefill: int,
    placement: Placement | None = None,
    inputs: Mapping[str, Any] | None = None,
    axis_positions_BSA: jax.Array | None = None,
) -> tuple[np.ndarray, Any]:
    """Returns the logits of a prefill and of one token after another, and the last cache.

    Args:
        config: the model without a KV cache.
        params: its parameters, sharded as `placement` says.
        tokens_BS: the tokens.
        prefill: how many of them are in the first call.
        placement: the mesh; None for one device.
        inputs: named inputs of the context, which only the first call gets.
        axis_positions_BSA: the positions on several axes, if there are several.
    """
    length = tokens_BS.shape[1]
    model = with_kv_cache(config, length).build()

    @jax.jit
    def step(
        params: Any, tokens_BS: jax.Array, start: Any, cache: Any, inputs: Any, axes: Any
    ) -> Any:
        positions = jnp.broadcast_to(start + jnp.arange(tokens_BS.shape[1]), tokens_BS.shape)
        context = TokenContext(positions, jnp.ones_like(positions), inputs, axes)
        context = context.promise_contiguous()
        with nullcontext() if placement is None else use_placement(decoding_placement(placement)):
            arguments = (tokens_BS, context)
            logits, outputs = functional(model, params, arguments, cache=cache, method="all_logits")
        return logits, outputs.cache

    cache, start, found, given = {}, 0, [], dict(inputs or {})
    for size in (prefill, *(1,) * (length - prefill)):
        now = slice(start, start + size)
        axes = None if axis_positions_BSA is None else axis_positions_BSA[:, now]
        logits, cache = step(params, tokens_BS[:, now], start, cache, given, axes)
        found.append(np.asarray(logits))
        start, given = start + size, {}
    return np.concatenate(found, axis=1), cache
