"""The squared ReLU, against numpy."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from dovetail.config import from_text, to_text
from dovetail.layers.feed_forward import PlainFeedForward, squared_relu
from dovetail.module import functional
from tests.layers.cases import HIDDEN, WIDTH, random_params, vectors


def test_a_feed_forward_with_it() -> None:
    config = PlainFeedForward.Config(width=WIDTH, hidden=HIDDEN, activation=squared_relu)
    assert from_text(to_text(config)) == config
    params, x = random_params(config.build()), vectors()
    result, _ = functional(config.build(), params, x)
    up, down = (np.asarray(params[f"{name}/weight"]) for name in ("up", "down"))
    expected = np.maximum(np.asarray(x) @ up, 0) ** 2 @ down
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_the_sign_decides() -> None:
    np.testing.assert_array_equal(squared_relu(jnp.asarray([-3.0, 0.0, 3.0])), [0, 0, 9])
