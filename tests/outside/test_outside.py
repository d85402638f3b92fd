"""Layers of outside packages: each trains, and decodes step by step as all at once.

Each package is one file beside this one, as a user would write it, without an edit to the library.
Each runs on one device and on a mesh of eight.
"""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import apply_modifier, from_text, to_text
from dovetail.experiments import experiments
from dovetail.generate import Generator, with_kv_cache
from dovetail.learner import OneForwardOneBackward
from dovetail.module import functional, parameter_specs
from tests.outside import (  # noqa: F401  # importing a package registers its modifier
    hyper_connections,
    mixture_of_depths,
    per_layer_embeddings,
    shared_key_values,
    soft_prompt,
)
from tests.outside.steps import decode_in_steps
from tests.parallel.steps import program_and_batch

PACKAGES = (
    "hyper-connections",
    "mixture-of-depths",
    "per-layer-embeddings:rows=300",
    "shared-key-values",
    "soft-prompt",
)
MESHES = {"one device": {"fsdp": 1}, "eight": {"data": 2, "fsdp": 2, "model": 2}}
STEPS, LENGTH = 6, 16

every_package = pytest.mark.parametrize("modifier", PACKAGES)


@dataclass(frozen=True)
class Trained:
    """What came of a few steps."""

    program: Any
    losses: list[float]
    params: dict[str, Any]
    gradient: dict[str, Any]


@functools.cache
def trained(modifier: str, mesh: str = "one device") -> Trained:
    program, batch = program_and_batch("tiny-lm", MESHES[mesh], modifiers=(modifier,))
    step = program.lowered.compile()
    if mesh == "one device":
        state = program.initialize()
    else:
        start = jax.tree.map(np.asarray, initial_state(modifier))
        state = jax.device_put(start, program.state_shardings)
    losses, gradient = [], None
    for _ in range(STEPS):
        state, report = step(state, batch, program.hyperparameters)
        losses.append(float(report.loss))
        gradient = gradient or jax.tree.map(np.asarray, state.optimizer.trace)
    return Trained(program, losses, dict(state.params), gradient or {})


@functools.cache
def initial_state(modifier: str) -> Any:
    program, _ = program_and_batch("tiny-lm", MESHES["one device"], modifiers=(modifier,))
    return program.initialize()


@every_package
def test_it_reads_back_from_its_text(modifier: str) -> None:
    config = apply_modifier(experiments()["tiny-lm"].tiny(), modifier)
    assert from_text(to_text(config)) == config
    plain = parameter_specs(experiments()["tiny-lm"].tiny().build().model)
    assert parameter_specs(config.build().model).keys() != plain.keys()


@every_package
def test_it_trains(modifier: str) -> None:
    result = trained(modifier)
    assert result.losses[-1] < result.losses[0] - 0.05
    for path, gradient in result.gradient.items():
        assert np.abs(gradient).max() > 0, f"{path} has no gradient"


@every_package
def test_it_trains_on_a_mesh_as_on_one_device(modifier: str) -> None:
    one, eight = trained(modifier), trained(modifier, "eight")
    assert len(eight.params["decoder/embedding/weight"].sharding.device_set) == 8
    np.testing.assert_allclose(eight.losses, one.losses, rtol=1e-5)
    for path, gradient in one.gradient.items():
        allowed = 2e-5 * float(np.abs(gradient).max())
        np.testing.assert_allclose(
            eight.gradient[path], gradient, rtol=0, atol=allowed, err_msg=path
        )


@every_package
def test_it_trains_in_pipeline_stages(modifier: str) -> None:
    how = {
        "mesh": {"pipeline": 2, "fsdp": 2},
        "gradients": OneForwardOneBackward.Config(microbatches=2),
    }
    program, batch = program_and_batch("tiny-lm", **how, modifiers=(modifier,))
    start = jax.tree.map(np.asarray, initial_state(modifier))
    state = jax.device_put(start, program.state_shardings)
    _, report = program.lowered.compile()(state, batch, program.hyperparameters)
    np.testing.assert_allclose(report.loss, trained(modifier).losses[0], rtol=1e-5)


def some_tokens() -> jax.Array:
    return jax.random.randint(jax.random.key(3), (8, LENGTH), 1, 200)


@functools.cache
def at_once(modifier: str) -> np.ndarray:
    result = trained(modifier)
    run = jax.jit(lambda p, t: functional(result.program.model, p, (t,), method="predict")[0])
    return np.asarray(run(result.params, some_tokens()))


@every_package
@pytest.mark.parametrize("mesh", MESHES)
def test_step_by_step_equals_all_at_once(modifier: str, mesh: str) -> None:
    program = trained(modifier, mesh).program
    params = jax.device_put(trained(modifier).params, program.state_shardings.params)
    placement = None if mesh == "one device" else program.placement
    found, _ = decode_in_steps(program.model.config, params, some_tokens(), 7, placement)
    np.testing.assert_allclose(found, at_once(modifier), atol=2e-5)


@every_package
def test_it_generates_the_same_on_a_mesh(modifier: str) -> None:
    prompts = some_tokens()[:, :6].tolist()
    found = []
    for mesh in MESHES:
        program = trained(modifier, mesh).program
        params = jax.device_put(trained(modifier).params, program.state_shardings.params)
        placement = None if mesh == "one device" else program.placement
        generator = Generator(program.model.config, params, length=LENGTH, placement=placement)
        generations = generator.generate(prompts, max_new_tokens=4)
        found.append([generation.tokens for generation in generations])
    assert found[0] == found[1]
    expected = at_once(modifier)[:, 5].argmax(axis=-1)
    assert [tokens[0] for tokens in found[0]] == expected.tolist()


def cache_of(modifier: str) -> dict[str, Any]:
    """Returns the cache after a prefill."""
    result, tokens = trained(modifier), some_tokens()
    model = with_kv_cache(result.program.model.config, LENGTH).build()
    _, outputs = functional(model, result.params, (tokens,), method="predict")
    return dict(outputs.cache or {})


def test_tokens_that_skip_a_layer_are_not_cached() -> None:
    cache = cache_of("mixture-of-depths")
    (segment_ids,) = (value for path, value in cache.items() if path.endswith("segment_ids"))
    assert 0.05 < float(jnp.mean(segment_ids)) < 0.95
    plain = {path for path in cache if path.endswith("/keys")}
    assert len(plain) == 2  # every other layer; the other ones store no segment ids


def test_only_the_first_layer_of_a_group_has_a_cache() -> None:
    cache = cache_of("shared-key-values")
    assert sorted(path.rpartition("/")[2] for path in cache) == ["keys", "values"]
    assert cache[next(iter(cache))].shape[0] == 2  # groups, of four layers


@pytest.mark.parametrize("file", sorted(Path(__file__).parent.glob("*.py")), ids=lambda f: f.stem)
def test_packages_use_public_names_alone(file: Path) -> None:
    nodes = list(ast.walk(ast.parse(file.read_text())))
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    imported = {a.name for node in nodes if isinstance(node, ast.ImportFrom) for a in node.names}
    private = {name for name in used | imported if name[0] == "_" and not name.startswith("__")}
    assert private <= own
