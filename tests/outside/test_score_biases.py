"""Learned score biases from outside the package: FIRE and T5, in any experiment."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.kernels import prefer
from dovetail.kernels.attention import Full, attention
from dovetail.module import functional, parameter_specs
from dovetail.parallel import MeshLayout, use_placement
from dovetail.runtime import JsonLines
from tests.features.representatives import REPRESENTATIVES, with_features
from tests.kernels.attention.cases import aligned_call, arrays
from tests.layers.cases import random_params
from tests.outside.encoder_decoder import T5Bias
from tests.outside.fire_bias import FireBias
from tests.outside.steps import EIGHT, decode_in_steps, placement_on, shard_params
from tests.trainer.test_trainer import losses, train

ARRAYS = {"fire": ("log_slope", "log_length", "inner", "outer"), "t5-bias": ("table",)}
TEXTS = {"fire": "fire:length=16", "t5-bias": "t5-bias:max_distance=24"}
every_bias = pytest.mark.parametrize("name", ARRAYS)


def tiny(name):
    return with_features("tiny-lm", TEXTS[name])


def bias_arrays(name, found):
    """Returns the arrays of the bias, which are stacked over layers."""
    ends = tuple(f"scores/{one}" for one in ARRAYS[name])
    arrays = {path: array for path, array in found.items() if path.endswith(ends)}
    assert len(arrays) == len(ends)
    return arrays


@every_bias
@pytest.mark.parametrize("experiment", REPRESENTATIVES)
def test_every_experiment_takes_it(experiment, name):
    model = with_features(experiment, TEXTS[name]).build().model
    assert any(path.endswith(f"scores/{ARRAYS[name][-1]}") for path in parameter_specs(model))


@pytest.mark.slow
@every_bias
def test_the_loss_falls_on_a_mesh(name, tmp_path):
    config = tiny(name).set(steps=12, evaluators={}, writers={"json": JsonLines.Config()})
    config.set(mesh=MeshLayout.Config(data=2, fsdp=2, model=2)).learner.schedule.peak = 1e-2
    outcome = train(config, tmp_path / "run")
    found = losses(tmp_path / "run")
    assert outcome.step == 12
    assert found[12] < found[1] - 0.1


@every_bias
@pytest.mark.parametrize("length", [32, 128], ids=["reference", "blockwise"])
def test_on_a_mesh_as_on_one_device_and_gradients_reach_the_bias(name, length):
    model = tiny(name).model.build(vocab_size=300)
    params = random_params(model)
    tokens = jax.random.randint(jax.random.key(1), (8, length), 0, 300)

    def loss(params, tokens):
        logits = functional(model, params, (tokens,), method="predict")[0]
        return -jax.nn.log_softmax(logits)[..., 7].mean()

    value, gradients = jax.jit(jax.value_and_grad(loss))(params, tokens)
    placement = placement_on(EIGHT)
    shardings = {
        path: placement.sharding(spec.axes, spec.shape, path)
        for path, spec in parameter_specs(model).items()
    }

    def sharded_loss(params, tokens):
        with use_placement(placement):
            return loss(params, tokens)

    compute = jax.jit(
        jax.value_and_grad(sharded_loss),
        in_shardings=(shardings, placement.sharding(("batch", None))),
        out_shardings=(None, shardings),
    )
    sharded_value, sharded_gradients = compute(params, tokens)
    np.testing.assert_allclose(sharded_value, value, rtol=1e-5)
    for path, gradient in bias_arrays(name, gradients).items():
        size = np.abs(gradient).max()
        assert size > 0
        np.testing.assert_allclose(sharded_gradients[path], gradient, rtol=0, atol=1e-4 * size)


@every_bias
def test_decoding_step_by_step_equals_all_at_once(name):
    config = tiny(name).model.clone(vocab_size=300)
    model, placement = config.build(), placement_on(EIGHT)
    params = random_params(model)
    tokens = jax.random.randint(jax.random.key(1), (8, 24), 0, 300)
    expected, _ = jax.jit(lambda p, t: functional(model, p, (t,), method="predict"))(params, tokens)
    found, _ = decode_in_steps(config, params, tokens, 7)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    sharded = shard_params(model, params, placement)
    assert len(next(iter(bias_arrays(name, sharded).values())).sharding.device_set) == 8
    found, _ = decode_in_steps(config, sharded, tokens, 7, placement)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_fire_is_the_formula_of_the_paper():
    random = np.random.default_rng(0)
    inner, outer = random.standard_normal((2, 5)), random.standard_normal((5, 3))
    bias = FireBias(jnp.log(0.3), jnp.log(20.0), jnp.asarray(inner), jnp.asarray(outer))
    for head, query, key in ((0, 5, 5), (1, 9, 2), (2, 50, 3), (1, 70, 69), (0, 0, 0)):
        psi = [math.log(0.3 * x + 1) for x in (query - key, max(query, 20))]
        hidden = np.maximum(psi[0] / psi[1] * inner[0] + inner[1], 0)
        got = bias(jnp.asarray(head), jnp.asarray(query), jnp.asarray(key))
        np.testing.assert_allclose(got, hidden @ outer[:, head], rtol=1e-5)


def bucket(back, num_buckets, max_distance):
    """Returns T5's bucket of a distance, in exact arithmetic."""
    exact = num_buckets // 2
    if back < exact:
        return back
    # The bucket is exact + k for the largest k with back >= exact * (max / exact)^(k / rest).
    rest, k = num_buckets - exact, 0
    while k + 1 < rest and back**rest * exact ** (k + 1) >= exact**rest * max_distance ** (k + 1):
        k += 1
    return exact + k


@pytest.mark.parametrize("is_bidirectional", [False, True])
def test_t5_buckets(is_bidirectional):
    table = jnp.arange(32.0)[:, None]
    bias = T5Bias(table, 128, 16 if is_bidirectional else None)
    keys = np.asarray([*range(130, 470), 0, 999])
    found = bias(jnp.zeros(1, int), jnp.asarray([300]), jnp.asarray(keys))
    for key, got in zip(keys.tolist(), found.tolist(), strict=True):
        if is_bidirectional:
            assert got == 16 * (key > 300) + bucket(abs(300 - key), 16, 128), key
        else:
            assert got == bucket(max(300 - key, 0), 32, 128), key


def test_both_sides_of_a_query_have_buckets_and_gradients():
    random = np.random.default_rng(0)
    bias = T5Bias(jnp.asarray(random.standard_normal((32, 4)), jnp.float32), 128, 16)
    call = aligned_call(Full(), 2, 140, is_packed=True)
    inputs = (*arrays(2, 140, 140, 4, 2, 8), bias)

    def run(implementation):
        def loss(q, k, v, bias):
            with prefer(attention=implementation):
                return jnp.sin(attention(q, k, v, **call, score_bias=bias)).sum()

        return jax.jit(jax.grad(loss, (0, 3)))(*inputs)

    (got, table), (expected, expected_table) = run("blockwise"), run("reference")
    np.testing.assert_allclose(got, expected, atol=1e-5)
    np.testing.assert_allclose(table.table, expected_table.table, atol=1e-4)
    used = np.abs(table.table).max(axis=1) > 0
    assert used[1:14].all()
    assert used[17:30].all()
    assert not used[16], "no key after the query is at distance 0"
