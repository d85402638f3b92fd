"""Runs whose models have adapters that are not zero, made without training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

from dovetail.config import apply_modifier
from dovetail.experiments import experiments
from dovetail.layers import TokenContext
from dovetail.module import functional, parameter_specs, variable_specs
from dovetail.run import InitFromRun
from dovetail.runtime import RunFolder, StoredWeights

experiments()  # with them come the modifiers


def with_lora(config: Any) -> Any:
    return apply_modifier(config, "lora:rank=3,alpha=5.0")


def adapted_run(base: Path, target: Path, adapt: Callable[[Any], Any] = with_lora) -> Path:
    """Makes a run that began from an imported one, with adapters of random numbers."""
    config: Any = RunFolder(base).config()
    config = adapt(config.set(initialization=InitFromRun.Config(run=str(base))))
    target.mkdir()
    run = RunFolder(target)
    run.describe(config, RunFolder(base).about())
    random = np.random.default_rng(3)
    before = StoredWeights(RunFolder(base).weights)
    arrays = {}
    for path, spec in parameter_specs(config.model.build()).items():
        if path in before.shapes:
            arrays[path] = np.asarray(before.read_at(path, ()))
        else:
            arrays[path] = random.normal(0, 0.1, spec.shape).astype(np.float32)
    for path in variable_specs(config.model.build()):
        if path in before.shapes:
            arrays[path] = np.asarray(before.read_at(path, ()))
    run.weights.mkdir()
    save_file(arrays, run.weights / "00001.safetensors")
    return target


def logits(run: Path, ids: np.ndarray) -> np.ndarray:
    """Returns the logits of a run with its stored weights."""
    config: Any = RunFolder(run).config()
    model, weights = config.model.build(), StoredWeights(RunFolder(run).weights)
    states = [
        {path: jnp.asarray(weights.read_at(path, ())) for path in specs(model)}
        for specs in (parameter_specs, variable_specs)
    ]
    positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)

    @jax.jit
    def compute(params: Any, variables: Any) -> jax.Array:
        inputs = (jnp.asarray(ids), TokenContext(positions, jnp.ones_like(positions)))
        options: dict[str, Any] = {"method": "all_logits", "losses": "discard"}
        return functional(model, params, inputs, variables=variables, **options)[0]

    return np.asarray(compute(*states))
