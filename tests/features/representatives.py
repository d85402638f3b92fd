"""A dense model, one with experts, one with latent attention, and one that is not a Llama."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.config import apply_modifier, from_text, to_text
from dovetail.experiments import experiments
from dovetail.parallel import MeshLayout

REPRESENTATIVES = ("tiny-lm", "qwen3-30b-a3b", "deepseek-v3", "gpt2")

every_representative = pytest.mark.parametrize("name", REPRESENTATIVES)


def tiny(name: str, *features: str) -> Any:
    """Returns the tiny form with features, for a run of two steps; its text reads back."""
    config = experiments()[name].tiny()
    for text in features:
        config = apply_modifier(config, text)
    assert from_text(to_text(config)) == config
    return config.set(steps=2, writers={}, evaluators={}, mesh=MeshLayout.Config(data=-1, fsdp=1))
