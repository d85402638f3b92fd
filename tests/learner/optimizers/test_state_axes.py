"""The logical axes of the whole state, without a line of code per optimizer."""

import jax
import numpy as np
import optax
import pytest

from dovetail.config import Component
from dovetail.learner import Adafactor, AdamW, Ema, LogicalAxes, Muon, Sgd
from dovetail.learner.optimizers.state_axes import optimizer_axes
from dovetail.module import ConstantInitializer, ParameterSpec
from tests.learner.optimizers.test_optimizers import every_optimizer, names
from tests.learner.tiny import Net, initial, make_learner

FILL = ConstantInitializer.Config().build()
MATRIX = {"fan_in": (0,), "fan_out": (1,)}


def spec(shape, axes, stacked: int = 0) -> ParameterSpec:
    made = ParameterSpec(shape[stacked:], axes[stacked:], FILL, **MATRIX)
    for size, axis in reversed(list(zip(shape[:stacked], axes[:stacked], strict=True))):
        made = made.stack(size, axis, 0)
    return made


@pytest.mark.parametrize("config", every_optimizer(), ids=names)
def test_the_tree_of_axes_is_the_tree_of_state(config) -> None:
    model = Net.Config().build()
    learner = make_learner(optimizer=config, ema=Ema.Config())
    state = jax.eval_shape(lambda p, v: learner.init(model, p, v), *initial(Net))
    axes = learner.state_axes(model)
    assert jax.tree.structure(state) == jax.tree.structure(axes)

    def check(leaf, axes) -> None:
        assert isinstance(axes, LogicalAxes)
        assert leaf.ndim == len(axes)

    jax.tree.map(check, state, axes)


def test_moments_have_their_parameters_axes_and_scalars_none() -> None:
    axes = make_learner(ema=Ema.Config()).state_axes(Net.Config().build())
    assert axes.params["layer/mix"] == ("layers", "embed", "heads")
    assert axes.optimizer.mu == axes.optimizer.nu == axes.params == axes.ema
    assert axes.step == axes.optimizer.count == axes.variables["seen"] == axes.halted_at == ()


@pytest.mark.parametrize("sizes", [(8, 8), (8, 16), (16, 8), (4, 4)])
@pytest.mark.parametrize("stacked", [0, 1])
def test_adafactors_rows_and_columns_have_the_axis_that_is_left(sizes, stacked) -> None:
    """Held against what Adafactor really keeps, by a gradient that differs along one axis only."""
    shape, names = (8, *sizes)[1 - stacked :], ("layers", "embed", "heads")[1 - stacked :]
    specs = {"weight": spec(shape, names, stacked)}
    optimizer = Adafactor.Config(min_dim_size_to_factor=4).build()
    factors = optimizer_axes(optimizer, specs)["weight"][0]
    transformation = optimizer.transformation(specs)
    rows = (
        np.ones(shape, np.float32) * np.arange(1, sizes[0] + 1, dtype=np.float32)[:, None]
    )  # varies along "embed"
    _, state = transformation.update(
        {"weight": rows}, transformation.init({"weight": rows}), {"weight": rows}
    )
    by_axis = {"embed": np.ptp, "heads": np.ptp}
    for name in ("v_row", "v_col"):
        kept, axes = np.asarray(getattr(state["weight"][0], name)), getattr(factors, name)
        assert axes[:stacked] == ("layers",)[:stacked]
        (left,) = axes[stacked:]
        assert (by_axis[left](kept.reshape(-1, kept.shape[-1])[0]) > 0) == (left == "embed")
    assert factors.v[stacked:] == (None,)


@pytest.mark.parametrize("size", [127, 128, 129])
def test_sizes_at_the_threshold_of_factoring(size) -> None:
    """Varying the sizes must not push a matrix over the threshold that decides what is kept."""
    specs = {"weight": spec((3, size, size, size), ("layers", "expert", "embed", "mlp"), 1)}
    factors = optimizer_axes(Adafactor.Config().build(), specs)["weight"][0]
    if size < 128:
        assert factors.v == ("layers", "expert", "embed", "mlp")
        assert factors.v_row == factors.v_col == ("layers", None)
    else:
        assert factors.v_row == ("layers", "expert", "embed")
        assert factors.v_col == ("layers", "expert", "mlp")


def test_constants_beside_a_parameter_of_the_same_size_are_not_its_axes() -> None:
    """Muon keeps three coefficients; a parameter may well have an axis of three."""
    specs = {"weight": spec((3, 3, 3), ("layers", "embed", "mlp"), 1)}
    muon = optimizer_axes(Muon.Config().build(), specs)["muon"]["weight"][0]
    assert muon.mu == ("layers", "embed", "mlp")
    assert muon.ns_coeffs == ("layers", None)
    assert muon.count == ("layers",)


class Transposing(Component):
    """Keeps a transposed copy, a flattened one, and something of no parameter."""

    def transformation(self, specs) -> optax.GradientTransformation:
        def init(params):
            moved = {path: value.T for path, value in params.items()}
            flat = {path: value.reshape(-1) for path, value in params.items()}
            return {"moved": moved, "flat": flat, "table": np.zeros((4, 4))}

        return optax.GradientTransformation(
            init, lambda updates, state, params=None: (updates, state)
        )


def test_any_optimizer_can_be_asked() -> None:
    axes = optimizer_axes(
        Transposing.Config().build(), {"weight": spec((4, 4), ("embed", "heads"))}
    )
    assert axes == {
        "moved": {"weight": ("heads", "embed")},
        "flat": {"weight": (None,)},
        "table": (None, None),
    }


def test_what_is_frozen_has_axes_but_no_state() -> None:
    axes = make_learner(frozen=("layer/*",), optimizer=AdamW.Config()).state_axes(
        Net.Config().build()
    )
    assert "layer/up" in axes.params
    assert set(axes.optimizer.mu) == {"embed", "head"}


def test_an_optimizer_without_state_has_no_axes() -> None:
    learner = make_learner(optimizer=Sgd.Config(momentum=0.0))
    assert jax.tree.leaves(learner.state_axes(Net.Config().build()).optimizer) == []
