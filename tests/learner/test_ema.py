"""The average of the parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.learner import Ema, averaged_parameters
from tests.learner.tiny import Net, initial, make_batch, make_learner, start, take_steps


@pytest.mark.parametrize(("warmup_steps", "decays"), [(0, [0.9, 0.9]), (9, [1 / 10, 2 / 11])])
def test_the_average_follows_the_parameters(warmup_steps, decays) -> None:
    model, batch = Net.Config().build(), make_batch()
    learner = make_learner(ema=Ema.Config(decay=0.9, warmup_steps=warmup_steps))
    states = [start(learner, model)]
    for _ in decays:
        states.append(take_steps(learner, model, [batch], states[-1])[0])
    for path in states[0].params:
        average = states[0].params[path]
        for decay, state in zip(decays, states[1:], strict=True):
            average = decay * average + (1 - decay) * state.params[path]
        np.testing.assert_allclose(states[-1].ema[path], average, rtol=1e-5, atol=1e-7)


def test_averages_are_float32_and_come_back_in_the_parameters_type() -> None:
    ema = Ema.Config(decay=0.5).build()
    params = {"weight": jnp.ones(3, jnp.bfloat16)}
    averages = ema.update(
        ema.init(params), {"weight": jnp.full(3, 1.0078125, jnp.bfloat16)}, jnp.int32(0)
    )
    assert averages["weight"].dtype == jnp.float32
    np.testing.assert_allclose(averages["weight"], 1.00390625)  # bfloat16 could not hold this


def test_the_first_state_shares_no_buffers_so_it_can_be_donated() -> None:
    model, learner = Net.Config().build(), make_learner(ema=Ema.Config())
    params, variables = jax.tree.map(jnp.copy, initial(Net))
    for init in (learner.init, jax.jit(learner.init, static_argnums=0)):
        state = init(model, params, variables)
        places = [
            leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves((state.params, state.ema))
        ]
        assert len(set(places)) == len(places)


def test_evaluation_gets_the_averages_and_what_is_frozen() -> None:
    model, batch = Net.Config().build(), make_batch()
    state, _ = take_steps(make_learner(ema=Ema.Config(), frozen=("embed",)), model, [batch])
    params = averaged_parameters(state)
    assert set(params) == set(state.params)
    np.testing.assert_array_equal(params["head"], state.ema["head"])
    np.testing.assert_array_equal(params["embed"], state.params["embed"])
    without, _ = take_steps(make_learner(), model, [batch])
    assert without.ema == {}
    assert averaged_parameters(without) == without.params


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"decay": 1.0}, "^decay: expected 0 or more and less than 1, got 1.0"),
        ({"warmup_steps": -1}, "0 or more, got -1"),
    ],
)
def test_impossible_values_are_refused(values, message) -> None:
    with pytest.raises(ConfigError, match=message):
        Ema.Config(**values).build()
