"""Sharded training equals unsharded training, and each array has the sharding of its axes."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from dovetail.learner import Accumulate, Adafactor, AdamW, Autodiff, Ema, Muon
from tests.learner.tiny import KEY, Net, initial, make_batch, make_learner, take_steps

RULES = {"batch": "data", "embed": "data", "mlp": "model", "heads": "model", "vocab": "model"}
ADAFACTOR = Adafactor.Config(min_dim_size_to_factor=4)


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def shardings(mesh: Mesh, axes):
    return jax.tree.map(lambda a: NamedSharding(mesh, PartitionSpec(*map(RULES.get, a))), axes)


@pytest.mark.parametrize(
    ("optimizer", "gradients"),
    [
        (AdamW.Config(), Accumulate.Config(microbatches=2)),
        (ADAFACTOR, Autodiff.Config()),
        (Muon.Config(), Autodiff.Config()),
    ],
)
def test_sharded_equals_unsharded(mesh, optimizer, gradients) -> None:
    values = {"ema": Ema.Config(), "clip_norm": 1.0, "weight_decay": 0.1}
    learner = make_learner(optimizer=optimizer, gradients=gradients, **values)
    model, batches = Net.Config().build(), [make_batch(seed=seed) for seed in range(3)]
    alone, reports = take_steps(learner, model, batches)

    state_shardings = shardings(mesh, learner.state_axes(model))
    init = jax.jit(lambda p, v: learner.init(model, p, v), out_shardings=state_shardings)
    state = init(*initial(Net))
    step = jax.jit(
        lambda s, b: learner.step(model, s, b, KEY),
        donate_argnums=0,
        out_shardings=(state_shardings, None),
    )
    rows = NamedSharding(mesh, PartitionSpec("data"))
    for batch, expected in zip(batches, reports, strict=True):
        state, report = step(state, jax.device_put(batch, rows))
        np.testing.assert_allclose(report.loss, expected.loss, rtol=1e-5)

    def check(path, leaf, reference, sharding) -> None:
        where = jax.tree_util.keystr(path)
        assert leaf.sharding.is_equivalent_to(sharding, leaf.ndim), where
        np.testing.assert_allclose(leaf, reference, rtol=2e-3, atol=2e-5, err_msg=where)

    jax.tree_util.tree_map_with_path(check, state, alone, state_shardings)


def test_reduced_state_is_sharded_by_the_axes_that_are_left(mesh) -> None:
    learner, model = make_learner(optimizer=ADAFACTOR), Net.Config().build()
    state_shardings = shardings(mesh, learner.state_axes(model)).optimizer["layer/up"][0]
    assert state_shardings.v_row.spec == PartitionSpec(None, "data")  # layers, embed
    assert state_shardings.v_col.spec == PartitionSpec(None, "model")  # layers, mlp
