"""Features of stacks: each applies to dense, sparse and latent models, or says why not."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.config import Config, ConfigError, apply_modifier, from_text, select, to_text
from dovetail.experiments import find_experiment
from dovetail.features import NotApplicable, features
from dovetail.layers import BaseAttention, Stack, TransformerBlock, layers_of
from dovetail.layers.loss.multi_token import MultiTokenLoss
from dovetail.layers.stack.blocks import ParallelBlock
from dovetail.layers.stack.stack import SharedStack
from dovetail.module import ParameterSpec, parameter_specs
from dovetail.parallel import SaveNothing

every_model = pytest.mark.parametrize("name", ["tiny-lm", "qwen3-30b-a3b", "deepseek-v3", "gpt2"])


def tiny(name: str) -> Any:
    return find_experiment(name).tiny()


def specs_of(config: Any) -> dict[str, ParameterSpec]:
    return parameter_specs(config.model.clone(vocab_size=264).build())


def count(config: Any) -> int:
    return sum(spec.size for spec in specs_of(config).values())


def applied(name: str, feature: str) -> Config[Any]:
    config = apply_modifier(tiny(name), feature)
    assert from_text(to_text(config)) == config
    return config


@every_model
def test_parallel_blocks(name: str) -> None:
    config = applied(name, "parallel-block")
    assert not select(config, TransformerBlock).found
    assert len(select(config, ParallelBlock)) == len(select(tiny(name), TransformerBlock))
    assert count(config) < count(tiny(name))  # a norm less
    with pytest.raises(NotApplicable, match="there is no block of attention and feed-forward"):
        apply_modifier(config, "parallel-block")


@every_model
def test_shared_layers(name: str) -> None:
    config = applied(name, "shared-layers")
    assert all(type(stack) is SharedStack.Config for stack in select(config, Stack))
    assert not any("layers" in spec.axes for spec in specs_of(config).values())
    with pytest.raises(NotApplicable, match="its layers share parameters"):
        apply_modifier(config, "shared-layers")


def mixers(config: Any) -> list[str]:
    """Names what mixes the tokens of each layer."""
    layers = layers_of(config.model.decoder.stack)
    return [type(layer.attention).builds().__name__ for layer in layers]


@pytest.mark.parametrize(("feature", "part"), [("mamba2", "Mamba2"), ("gated-delta", "GatedDelta")])
@every_model
def test_recurrent_layers_beside_attention(name: str, feature: str, part: str) -> None:
    before = mixers(tiny(name))
    config = applied(name, f"{feature}:every=2")
    expected = [kept if index % 2 else part for index, kept in enumerate(before)]
    assert mixers(config) == expected
    assert specs_of(config)
    assert set(mixers(applied(name, f"{feature}:every=0"))) == {part}
    assert set(mixers(applied(name, feature))) <= {part, *before}


@pytest.mark.parametrize("feature", ["mamba2", "gated-delta"])
@every_model
def test_what_is_tried_on_tiny_forms_is_a_hybrid(name: str, feature: str) -> None:
    config = features()[feature].apply(tiny(name), **features()[feature].trial)
    assert len(set(mixers(config))) == 2


def deep() -> Any:
    config = tiny("tiny-lm")
    config.model.decoder.stack.num_layers = 8
    return config


def test_a_deep_hybrid_is_a_loop_over_a_pattern() -> None:
    config = deep()
    config.model.decoder.stack.remat = SaveNothing.Config()
    stack = apply_modifier(config, "mamba2").model.decoder.stack
    assert (stack.num_layers, len(stack.layer.layers)) == (2, 4)
    assert isinstance(stack.remat, SaveNothing.Config)


def test_two_kinds_of_recurrent_layers() -> None:
    """The second feature counts the layers that are left to it."""
    config = apply_modifier(apply_modifier(deep(), "mamba2:every=2"), "gated-delta:every=2")
    assert mixers(config) == ["Mamba2", "GatedDelta", "Mamba2", "Attention"] * 2


def test_a_shared_layer_is_changed_as_one() -> None:
    config = apply_modifier(apply_modifier(deep(), "shared-layers"), "mamba2")
    assert not select(config, BaseAttention).found
    assert len(select(config, SharedStack)) == 1
    assert not any(8 in spec.shape[:1] for spec in specs_of(config).values())


def test_every_layer_cannot_both_change_and_stay() -> None:
    with pytest.raises(ConfigError, match=r"every: expected 0 .* or 2 or more, got 1"):
        apply_modifier(deep(), "mamba2:every=1")
    all_recurrent = apply_modifier(deep(), "mamba2:every=0")
    with pytest.raises(NotApplicable, match="there is no attention to replace"):
        apply_modifier(all_recurrent, "gated-delta")


@every_model
def test_multi_token_prediction(name: str) -> None:
    config = applied(name, "mtp:depth=2,weight=0.1")
    (loss,) = select(config, MultiTokenLoss)
    assert (loss.depth, loss.weight) == (2, 0.1)
    assert loss.base == tiny(name).model.loss
    assert loss.head.layer == layers_of(tiny(name).model.decoder.stack)[-1]
    assert loss.head.norm == tiny(name).model.decoder.norm
    before, after = specs_of(tiny(name)), specs_of(config)
    assert {path for path in after if path.startswith("loss/heads/1/")} == after.keys() - {
        *before,
        *(path for path in after if path.startswith("loss/heads/0/")),
    }
    with pytest.raises(NotApplicable, match="set its depth with key"):
        apply_modifier(config, "mtp")


@pytest.mark.parametrize("norm", ["rms-norm", "layer-norm", "dynamic-tanh", "no-norm"])
def test_the_norm_of_a_head_is_one_of_the_residual_stream(norm: str) -> None:
    one = apply_modifier(applied("gpt2", "mtp"), norm)
    assert one == apply_modifier(applied("gpt2", norm), "mtp")


def test_a_head_is_one_layer_of_a_stack_that_shares_its_layers() -> None:
    config = apply_modifier(apply_modifier(deep(), "shared-layers"), "mtp")
    (loss,) = select(config, MultiTokenLoss)
    assert loss.head.layer == deep().model.decoder.stack.layer
