"""Losses, summaries and outputs cross every transformation with the stated reduction."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from dovetail.module import (
    Loss,
    Maximum,
    Mean,
    checkpoint,
    cond,
    functional,
    scan,
    shard_map,
    take_outputs,
    value_and_grad,
    vmap,
)
from tests.module.example_modules import X_BE, Chatty, Host, over_layers, weights

MODEL = Host.Config(child=Chatty.Config()).build()
PARAMS = weights(MODEL)


def by_hand(params: dict[str, Any], x: Any) -> Any:
    """The repeated child in plain Python: result, loss, mean and largest."""
    total, mean, largest = 0.0, 0.0, -jnp.inf
    for scale in params["many/scale"]:
        total += jnp.sum(x**2 * scale)
        mean += x.mean() / 3
        largest = jnp.maximum(largest, x.max())
        x = jnp.tanh(x * scale)
    return x, total, mean, largest


def scanned(model: Host, x: Any) -> Any:
    return over_layers(model, x)


def unrolled(model: Host, x: Any) -> Any:
    return over_layers(model, x, unroll=3)


def scan_around_checkpoint(model: Host, x: Any) -> Any:
    return over_layers(model, x, around=functools.partial(jax.checkpoint, prevent_cse=False))


def scan_in_checkpoint(model: Host, x: Any) -> Any:
    return checkpoint(functools.partial(over_layers, model))(x)


def checkpoint_in_scan(model: Host, x: Any) -> Any:
    def body(carry: Any, _: None) -> Any:
        return checkpoint(model.many, policy=jax.checkpoint_policies.dots_saveable)(carry), None

    return scan(model.many, body, x)[0]


def cond_in_scan(model: Host, x: Any) -> Any:
    def body(carry: Any, _: None) -> Any:
        return cond(carry.sum() > 0, model.many, lambda x: model.many(x) * 1, carry), None

    return scan(model.many, body, x)[0]


def scan_in_cond(model: Host, x: Any) -> Any:
    through = functools.partial(over_layers, model)
    return cond(x.sum() > 1e6, lambda x: through(x) * 0, through, x)


def scan_in_grad(model: Host, x: Any) -> Any:
    def product(factor: Any) -> Any:
        return (over_layers(model, x) * factor).sum()

    return value_and_grad(product)(jnp.ones(X_BE.shape))[1]  # the gradient is the other factor


def checkpoint_in_scan_in_checkpoint_in_grad(model: Host, x: Any) -> Any:
    def product(factor: Any) -> Any:
        return (checkpoint(functools.partial(checkpoint_in_scan, model))(x) * factor).sum()

    return value_and_grad(product)(jnp.ones(X_BE.shape))[1]


def sharded(model: Host, x: Any) -> Any:
    return _on_eight(functools.partial(over_layers, model))(x)


def sharded_in_checkpoint(model: Host, x: Any) -> Any:
    return checkpoint(_on_eight(functools.partial(scan_around_checkpoint, model)))(x)


def _on_eight(body: Any) -> Any:
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    split = PartitionSpec("data")
    return shard_map(body, mesh=mesh, in_specs=split, out_specs=split)


WAYS = [
    scanned,
    unrolled,
    scan_around_checkpoint,
    scan_in_checkpoint,
    checkpoint_in_scan,
    cond_in_scan,
    scan_in_cond,
    scan_in_grad,
    checkpoint_in_scan_in_checkpoint_in_grad,
    sharded,
    sharded_in_checkpoint,
]


@pytest.mark.parametrize("is_jitted", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_every_way_through_equals_a_python_loop(way: Any, is_jitted: bool) -> None:
    def ours(params: Any) -> Any:
        result, outputs = functional(MODEL, params, (way, X_BE), losses="return")
        assert set(outputs.losses) == {"many/square"}
        assert set(outputs.summaries) == {"many/mean", "many/largest"}
        assert outputs.losses["many/square"].weight.shape == ()
        loss, summaries = outputs.losses["many/square"], outputs.summaries
        mean, largest = summaries["many/mean"].value(), summaries["many/largest"].value()
        return loss.total + result.sum(), (loss, mean, largest, result)

    transformed = jax.value_and_grad(ours, has_aux=True)
    run = jax.jit(transformed) if is_jitted else transformed
    (_, (loss, mean, largest, result)), gradient = run(PARAMS)
    expected = by_hand(PARAMS, X_BE)
    np.testing.assert_allclose(result, expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(loss.total, expected[1], rtol=1e-5)
    assert loss.weight == 3 * 8
    np.testing.assert_allclose(mean, expected[2], rtol=1e-5)
    np.testing.assert_allclose(largest, expected[3], rtol=1e-6)

    def reference(params: Any) -> Any:
        result, total, *_ = by_hand(params, X_BE)
        return total + result.sum()

    np.testing.assert_allclose(
        gradient["many/scale"], jax.grad(reference)(PARAMS)["many/scale"], rtol=1e-4, atol=1e-5
    )


def test_vmap_merges_over_the_copies() -> None:
    def way(model: Host, x: Any) -> Any:
        return vmap(model.many, model.many, x, in_axes=None)

    result, outputs = functional(MODEL, PARAMS, (way, X_BE), losses="return")
    scale = PARAMS["many/scale"]
    np.testing.assert_allclose(result, jnp.tanh(X_BE * scale[:, None]), rtol=1e-5)
    loss = outputs.losses["many/square"]
    np.testing.assert_allclose(loss.total, (X_BE**2 * scale[:, None]).sum(), rtol=1e-5)
    assert loss.weight == 24
    np.testing.assert_allclose(outputs.summaries["many/largest"].value(), X_BE.max())


def test_outputs_are_stacked_by_scan_and_vmap() -> None:
    def telling(model: Host, x: Any) -> Any:
        def body(carry: Any, number: Any) -> Any:
            model.add_output("number", number * 2)
            return carry, number

        return scan(model.many, body, x, jnp.arange(3))[1]

    numbers, outputs = functional(MODEL, PARAMS, (telling, X_BE))
    np.testing.assert_array_equal(outputs.outputs["number"], [0, 2, 4])
    np.testing.assert_array_equal(numbers, [0, 1, 2])

    def mapped(model: Host, x: Any) -> Any:
        return vmap(model.many, lambda: model.add_output("scale", model.many.scale))

    _, outputs = functional(MODEL, PARAMS, (mapped, X_BE))
    np.testing.assert_array_equal(outputs.outputs["scale"], PARAMS["many/scale"])


def test_two_calls_of_one_module_merge_their_losses() -> None:
    def twice(model: Host, x: Any) -> None:
        model.one(x), model.one(x)

    _, outputs = functional(MODEL, PARAMS, (twice, X_BE), losses="return")
    assert outputs.losses["one/square"].weight == 16


def test_a_second_output_of_one_name_is_refused() -> None:
    def twice(model: Host, x: Any) -> None:
        model.add_output("x", x), model.add_output("x", x)

    with pytest.raises(ValueError, match="The output 'x' was added twice"):
        functional(MODEL, PARAMS, (twice, X_BE))


def test_branches_that_leave_different_things_are_refused() -> None:
    def uneven(model: Host, x: Any) -> Any:
        return cond(x.sum() > 0, model.one, lambda x: x, x)

    with pytest.raises(ValueError, match=r"'one/square'\] only where true, \[\] only where false"):
        functional(MODEL, PARAMS, (uneven, X_BE))


def test_an_error_in_a_branch_is_not_taken_for_that() -> None:
    def broken(model: Host, x: Any) -> Any:
        return cond(x.sum() > 0, lambda x: x + "text", model.one, x)

    with pytest.raises(TypeError, match="unsupported operand"):
        functional(MODEL, PARAMS, (broken, X_BE))


def test_outputs_and_state_have_no_reduction_over_devices() -> None:
    def tells(model: Host, x: Any) -> Any:
        return _on_eight(lambda x: model.add_output("x", x) or x)(x)

    with pytest.raises(ValueError, match=r"add_output inside shard_map.*\['x'\]"):
        functional(MODEL, PARAMS, (tells, X_BE))

    def keeps(model: Host, x: Any) -> Any:
        return _on_eight(lambda x: model.write_cache("x", x) or x)(x)

    with pytest.raises(ValueError, match=r"State was written inside shard_map: \['x'\]"):
        functional(MODEL, PARAMS, (keeps, X_BE))


class Split:
    """Splits the last axis of every array over `model`; the body reads its own shard."""

    def spec(self, axes: Any, shape: Any) -> PartitionSpec:
        assert len(axes) == len(shape)
        return PartitionSpec(*[None] * (len(shape) - 1), "model")

    def gather(self, shard: jax.Array, axes: Any, spec: PartitionSpec) -> jax.Array:
        return shard


def test_parameters_may_enter_shard_map_in_shards() -> None:
    def local(model: Host, x: Any) -> Any:
        mesh = jax.make_mesh((4,), ("model",), axis_types=(AxisType.Auto,))
        split = PartitionSpec(None, "model")
        run = shard_map(
            model.one,
            mesh=mesh,
            in_specs=(split,),
            out_specs=split,
            state_sharding=Split(),
        )
        return run(x)

    result, outputs = jax.jit(
        lambda params: functional(MODEL, params, (local, X_BE), losses="return")
    )(PARAMS)
    np.testing.assert_allclose(result, jnp.tanh(X_BE * PARAMS["one/scale"]), rtol=1e-5)
    expected = (X_BE**2 * PARAMS["one/scale"]).sum()
    np.testing.assert_allclose(outputs.losses["one/square"].total, expected, rtol=1e-5)


def run_one(model: Host, x: Any) -> Any:
    return model.one(x)


def test_untaken_losses_raise_and_list_their_paths() -> None:
    def both(model: Host, x: Any) -> Any:
        return over_layers(model, model.one(x))

    with pytest.raises(
        ValueError, match=r"nobody uses: many/square, one/square\..*losses=\"return\""
    ):
        functional(MODEL, PARAMS, (both, X_BE))
    _, outputs = functional(MODEL, PARAMS, (both, X_BE), losses="return")
    assert set(outputs.losses) == {"many/square", "one/square"}
    _, outputs = functional(MODEL, PARAMS, (both, X_BE), losses="discard")
    assert outputs.losses == {}
    assert outputs.summaries, "only losses are discarded"


def test_a_loss_is_a_pair_of_scalars_in_float32() -> None:
    def vector(model: Host, x: Any) -> None:
        model.add_loss("l", x, 1)

    with pytest.raises(ValueError, match=r"l: a loss is a pair of scalars.*\(8, 4\)"):
        functional(MODEL, PARAMS, (vector, X_BE))

    def low(model: Host, x: Any) -> None:
        model.add_loss("l", x.sum(), 1)

    _, outputs = functional(MODEL, PARAMS, (low, X_BE.astype(jnp.bfloat16)), losses="return")
    assert outputs.losses["l"].total.dtype == jnp.float32


def test_losses_normalise_once() -> None:
    losses = [Loss(jnp.float32(6), jnp.float32(2)), Loss(jnp.float32(2), jnp.float32(6))]
    assert losses[0].merge(losses[1]).value() == 1.0, "not the mean of 3 and 1/3"
    assert Loss(jnp.float32(0), jnp.float32(0)).value() == 0.0
    assert (
        Mean(jnp.ones(2), jnp.float32(4)).merge(Mean(jnp.ones(2), jnp.float32(4))).value()[0]
        == 0.25
    )
    assert Maximum(jnp.arange(3.0)).reduce().value() == 2


def test_outputs_of_a_name_are_taken() -> None:
    def takes(model: Host, x: Any) -> Any:
        def two(x: Any) -> Any:
            model.add_output("number", x.sum())
            model.add_output("other", x)
            return model.one(x)

        result, taken = take_outputs("number", two, x)
        return result, taken

    (result, taken), outputs = functional(MODEL, PARAMS, (takes, X_BE), losses="return")
    np.testing.assert_allclose(taken, [X_BE.sum()])
    assert list(outputs.outputs) == ["other"]
    assert list(outputs.losses) == ["one/square"]
    np.testing.assert_allclose(result, jnp.tanh(X_BE * PARAMS["one/scale"]))


def test_outputs_are_taken_in_the_body_of_a_scan() -> None:
    def shares(model: Host, x: Any) -> Any:
        def one(x: Any) -> Any:
            model.add_output("half", x / 2)
            return model.many(x)

        def body(carry: Any, _: None) -> Any:
            x, _ = carry
            x, (half,) = take_outputs("half", one, x)
            return (x, half), None

        return scan(model.many, body, (x, x))[0]

    (_, half), outputs = functional(MODEL, PARAMS, (shares, X_BE), losses="return")
    assert not outputs.outputs
    x = X_BE
    for scale in PARAMS["many/scale"][:2]:
        x = jnp.tanh(x * scale)
    np.testing.assert_allclose(half, x / 2, rtol=1e-6)
