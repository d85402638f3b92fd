"""Features of stacks: each applies to dense, sparse and latent models, or says why not."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.config import Config, apply_modifier, from_text, select, to_text
from dovetail.experiments import find_experiment
from dovetail.features import NotApplicable
from dovetail.layers import Stack, TransformerBlock
from dovetail.layers.stack.parallel import ParallelBlock
from dovetail.layers.stack.shared import SharedStack
from dovetail.module import ParameterSpec, parameter_specs

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
    with pytest.raises(NotApplicable, match="no block has a feed-forward behind its attention"):
        apply_modifier(config, "parallel-block")


@every_model
def test_shared_layers(name: str) -> None:
    config = applied(name, "shared-layers")
    assert all(type(stack) is SharedStack.Config for stack in select(config, Stack))
    assert not any("layers" in spec.axes for spec in specs_of(config).values())
    with pytest.raises(NotApplicable, match="its layers share their parameters"):
        apply_modifier(config, "shared-layers")
