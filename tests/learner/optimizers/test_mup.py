"""muP learning rates: which updates are scaled, and by how much."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from dovetail.config import ConfigError, from_text, to_text
from dovetail.learner import AdamW, Lion
from dovetail.learner.optimizers.library import named_optimizer
from dovetail.learner.optimizers.mup import MupOptimizer
from dovetail.learner.optimizers.state_axes import optimizer_axes
from dovetail.module import ConstantInitializer, ParameterSpec

FILL = ConstantInitializer.Config().build()
SPECS = {
    "embedding/weight": ParameterSpec((32, 8), ("vocab", "embed"), FILL),
    "up/weight": ParameterSpec(
        (3, 8, 16), ("layers", "embed", "mlp"), FILL, fan_in=(0,), fan_out=(1,), stacked=1
    ),
    "down/weight": ParameterSpec((16, 8), ("mlp", "embed"), FILL, fan_in=(0,), fan_out=(1,)),
    "norm/scale": ParameterSpec((8,), ("embed",), FILL, decays=False),
    "up/of_rank": ParameterSpec(
        (2, 16), (None, "mlp"), FILL, fan_in=(0,), fan_out=(1,), fan_in_grows=False
    ),
}
FACTORS = {
    "embedding/weight": 1.0,
    "up/weight": 4 / 8,
    "down/weight": 4 / 16,
    "norm/scale": 1.0,
    "up/of_rank": 1.0,
}


def arrays(seed: int) -> dict[str, jax.Array]:
    random = np.random.default_rng(seed)
    return {
        path: jax.numpy.asarray(random.normal(size=spec.shape), np.float32)
        for path, spec in SPECS.items()
    }


@pytest.mark.parametrize("inner", [AdamW.Config(b2=0.9), Lion.Config()])
def test_matrices_move_less_the_more_they_sum_over(inner) -> None:
    config = MupOptimizer.Config(base_width=4, optimizer=inner)
    assert from_text(to_text(config)) == config
    plain, scaled = (c.build().transformation(SPECS) for c in (inner, config))
    params = arrays(0)
    one, other = plain.init(params), scaled.init(params)
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for seed in (1, 2):
        expected, one = plain.update(arrays(seed), one, params)
        directions, other = scaled.update(arrays(seed), other, params)
        for path, factor in FACTORS.items():
            np.testing.assert_allclose(directions[path], factor * expected[path], rtol=1e-6)


def test_its_state_is_split_as_that_of_the_other() -> None:
    one = optimizer_axes(MupOptimizer.Config(base_width=4).build(), SPECS)
    assert one == optimizer_axes(AdamW.Config().build(), SPECS)


def test_a_base_width_of_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="base_width: expected 1 or more, got 0"):
        MupOptimizer.Config(base_width=0).build()


@pytest.mark.parametrize("name", ["adafactor", "lamb", "muon", "novograd", "sgd"])
def test_directions_of_other_sizes_are_refused(name: str) -> None:
    config = MupOptimizer.Config(base_width=4, optimizer=named_optimizer(name))
    with pytest.raises(
        ConfigError, match=r"optimizer: muP learning rates need updates of a fixed size"
    ):
        config.build()
