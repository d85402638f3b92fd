"""Gradient accumulation over microbatches equals one pass over the batch."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from dovetail.config import ConfigError
from dovetail.learner import Accumulate, Autodiff
from dovetail.learner.accumulate import split_batch
from dovetail.module import Maximum, Module, parameter
from tests.learner.tiny import KEY, Net, initial, make_batch, make_learner, start, take_steps


def produce(config, model, batch):
    params, variables = initial(type(model))
    producer = config.build()
    return jax.jit(lambda p, b: producer(model, p, {}, variables, b, KEY, jnp.int32(0)))(
        params, batch
    )


@pytest.mark.parametrize("microbatches", [2, 8])
def test_gradients_losses_and_variables_equal_those_of_the_big_batch(microbatches) -> None:
    """Two losses of different weights, and token counts that differ between microbatches."""
    model, batch = Net.Config().build(), make_batch()
    counts = split_batch(batch["weights"], microbatches).sum((1, 2))
    assert len(set(counts.tolist())) > 1
    whole = produce(Autodiff.Config(), model, batch)
    parts = produce(Accumulate.Config(microbatches=microbatches), model, batch)
    for path, gradient in whole.gradients.items():
        scale = np.abs(gradient).max()
        np.testing.assert_allclose(parts.gradients[path] / scale, gradient / scale, atol=1e-6)
    for path, loss in whole.losses.items():
        np.testing.assert_allclose(parts.losses[path].value(), loss.value(), rtol=1e-6)
        np.testing.assert_allclose(parts.losses[path].weight, loss.weight)
    np.testing.assert_allclose(parts.variables["seen"], whole.variables["seen"])


def test_a_microbatch_without_any_weight_adds_nothing() -> None:
    model, batch = Net.Config().build(), make_batch()
    batch["weights"] = batch["weights"].at[1::2].set(0)  # the whole of the second of two
    whole = produce(Autodiff.Config(), model, batch)
    parts = produce(Accumulate.Config(microbatches=2), model, batch)
    for path, gradient in whole.gradients.items():
        np.testing.assert_allclose(parts.gradients[path], gradient, rtol=1e-4, atol=1e-7)


def test_one_microbatch_is_plain_autodiff_random_numbers_included() -> None:
    model, batch = Net.Config(noise=0.3).build(), make_batch()
    whole = produce(Autodiff.Config(), model, batch)
    one = produce(Accumulate.Config(microbatches=1), model, batch)
    two = produce(Accumulate.Config(microbatches=2), model, batch)
    assert one.losses["cross_entropy"].total == whole.losses["cross_entropy"].total
    assert two.losses["cross_entropy"].total != whole.losses["cross_entropy"].total


class Counting(Module):
    """Writes what it sees of its variable, and summaries of two kinds."""

    def __init__(self, config: Module.Config) -> None:
        super().__init__(config)
        self.weight = parameter((2,), ("embed",))

    def __call__(self, x_BE: jax.Array) -> None:
        self.add_loss("loss", (x_BE * self.weight).sum(), x_BE.shape[0])
        self.add_summary("mean", x_BE.mean(), weight=x_BE.size)
        self.add_summary("largest", Maximum(x_BE.max()))


def test_summaries_merge_over_microbatches() -> None:
    batch = jnp.arange(12.0).reshape(6, 2)
    _, (report,) = take_steps(
        make_learner(gradients=Accumulate.Config(microbatches=3)),
        Counting.Config().build(),
        [batch],
    )
    np.testing.assert_allclose(report.summaries["mean"].value(), batch.mean())
    assert report.summaries["largest"].value() == 11


def test_low_precision_parameters_accumulate_in_float32() -> None:
    class Low(Module):
        def __init__(self, config: Module.Config) -> None:
            super().__init__(config)
            self.weight = parameter((2,), ("embed",), dtype="bfloat16")

        def __call__(self, x_BE: jax.Array) -> None:
            self.add_loss(
                "loss", (x_BE.astype(self.weight.dtype) * self.weight).sum(), x_BE.shape[0]
            )

    produced = produce(Accumulate.Config(microbatches=8), Low.Config().build(), jnp.ones((8, 2)))
    assert produced.gradients["weight"].dtype == jnp.float32
    state, _ = take_steps(
        make_learner(gradients=Accumulate.Config(microbatches=2)),
        Low.Config().build(),
        [jnp.ones((8, 2))],
    )
    assert state.params["weight"].dtype == jnp.bfloat16


def test_the_pass_for_the_weights_leaves_no_matrix_product_behind() -> None:
    model, batch = Net.Config().build(), make_batch()
    state = start(make_learner(), model)

    def products(config) -> int:
        producer = config.build()
        compiled = (
            jax.jit(lambda p: producer(model, p, {}, state.variables, batch, KEY, state.step))
            .lower(state.params)
            .compile()
        )
        return len(re.findall(r" dot\(|custom_call_target=\"__onednn\$matmul", compiled.as_text()))

    assert products(Accumulate.Config(microbatches=2)) == products(Autodiff.Config()) > 0


def test_rows_are_interleaved_and_a_sharded_batch_stays_where_it_is() -> None:
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
    rows = jax.device_put(jnp.arange(16)[:, None], NamedSharding(mesh, PartitionSpec("data")))
    compiled = jax.jit(lambda b: split_batch(b, 2)).lower(rows).compile()
    assert not re.findall(
        r"all-gather|all-to-all|collective-permute|all-reduce", compiled.as_text()
    )
    micro = compiled(rows)
    assert micro.sharding.is_equivalent_to(NamedSharding(mesh, PartitionSpec(None, "data")), 3)
    np.testing.assert_array_equal(micro[0, :, 0], np.arange(0, 16, 2))


def test_an_indivisible_batch_names_both_numbers() -> None:
    learner = make_learner(gradients=Accumulate.Config(microbatches=3))
    with pytest.raises(
        ConfigError, match=r"^gradients.microbatches=3: the batch has 8 rows \(targets\)"
    ):
        take_steps(learner, Net.Config().build(), [make_batch()])
    with pytest.raises(ConfigError, match="microbatches: expected 1 or more, got 0"):
        Accumulate.Config(microbatches=0).build()


class SelfWeighing(Module):
    """Its loss counts by a weight that depends on a parameter."""

    def __init__(self, config: Module.Config) -> None:
        super().__init__(config)
        self.weight = parameter((2,), ("embed",))

    def __call__(self, x_BE: jax.Array) -> None:
        y_BE = x_BE * self.weight
        self.add_loss("loss", y_BE.sum(), (y_BE**2).sum())


def test_weights_only_normalise() -> None:
    """No gradient goes through a weight, in one pass or in several."""
    model, batch = SelfWeighing.Config().build(), jnp.arange(1.0, 9.0).reshape(4, 2)
    weight = initial(SelfWeighing)[0]["weight"]
    expected = batch.sum(0) / ((batch * weight) ** 2).sum()
    for config in (Autodiff.Config(), Accumulate.Config(microbatches=2)):
        gradient = produce(config, model, batch).gradients["weight"]
        np.testing.assert_allclose(gradient, expected, rtol=1e-5)
