"""Norms of the residual stream, and their replacements."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from dovetail.config import ConfigError, select
from dovetail.layers import BaseNorm, Decoder, Stack
from dovetail.layers.linear.linear import NormedLinear
from dovetail.layers.mup import ScaledReadout, with_scaled_readout
from dovetail.layers.norms import DynamicTanh, LayerNorm, NoNorm
from dovetail.layers.residual import SandwichNorm, with_residual_norm
from dovetail.module import functional, initialize, parameter_specs
from tests.layers.cases import VOCAB, WIDTH, block, latent_attention, random_params, vectors


def test_no_norm_leaves_everything() -> None:
    x, norm = vectors(), NoNorm.Config(width=WIDTH).build()
    assert parameter_specs(norm) == {}
    np.testing.assert_array_equal(functional(norm, {}, x)[0], x)


def test_dynamic_tanh_is_the_papers() -> None:
    x, norm = vectors(), DynamicTanh.Config(width=WIDTH).build()
    params = random_params(norm)
    steepness, scale, bias = (np.asarray(params[n]) for n in ("steepness", "scale", "bias"))
    expected = scale * np.tanh(steepness * np.asarray(x)) + bias
    np.testing.assert_allclose(functional(norm, params, x)[0], expected, atol=1e-6)


def test_dynamic_tanh_begins_as_a_plain_curve() -> None:
    x, norm = vectors(), DynamicTanh.Config(width=WIDTH, first_steepness=0.8).build()
    first = initialize(norm, jax.random.key(0))
    np.testing.assert_allclose(functional(norm, first, x)[0], np.tanh(0.8 * x), atol=1e-6)
    assert not any(spec.decays for spec in parameter_specs(norm).values())


def test_the_readout_shrinks_with_the_width() -> None:
    x = vectors()
    plain = NoNorm.Config(width=WIDTH)
    for base_width in (WIDTH, 4):
        readout = ScaledReadout.Config(width=WIDTH, base_width=base_width, norm=plain).build()
        expected = np.asarray(x) * base_width / WIDTH
        np.testing.assert_allclose(functional(readout, {}, x)[0], expected, rtol=1e-6)
    with pytest.raises(ConfigError, match="base_width: expected 1 or more, got 0"):
        ScaledReadout.Config(width=WIDTH, base_width=0).build()


def decoder() -> Decoder.Config:
    """Norms in residual connections, the final norm, and norms inside attention."""
    layer = block().set(attention=latent_attention(), attention_residual=SandwichNorm.Config())
    layer.attention.output = NormedLinear.Config()
    return Decoder.Config(
        vocab_size=VOCAB, width=WIDTH, stack=Stack.Config(num_layers=2, layer=layer)
    )


def test_norms_of_the_residual_stream_are_those_of_residuals_and_the_final_norm() -> None:
    plain = decoder()
    changed = with_residual_norm(plain, DynamicTanh.Config())
    found = {path for path, _ in select(changed, DynamicTanh).found.items()}
    layer = "stack.layer"
    assert found == {
        f"{layer}.attention_residual.norm",
        f"{layer}.attention_residual.output_norm",
        f"{layer}.feed_forward_residual.norm",
        "norm",
    }
    inside = {path for path in select(plain, BaseNorm).found if path not in found}
    names = ("latent_norm", "query.norm", "output.norm")
    assert inside == {f"{layer}.attention.{name}" for name in names}
    assert all(
        select(changed, BaseNorm).found[p] == select(plain, BaseNorm).found[p] for p in inside
    )


def test_a_set_epsilon_is_carried_over() -> None:
    plain = decoder()
    plain.norm.epsilon = 1e-3
    changed = with_residual_norm(plain, LayerNorm.Config())
    assert changed.norm == LayerNorm.Config(epsilon=1e-3)


def test_a_scaled_readout_and_another_norm_add_up_in_any_order() -> None:
    one = with_residual_norm(with_scaled_readout(decoder(), 4), NoNorm.Config())
    other = with_scaled_readout(with_residual_norm(decoder(), NoNorm.Config()), 4)
    assert one == other
    assert isinstance(one.norm, ScaledReadout.Config)
    assert isinstance(one.norm.norm, NoNorm.Config)
