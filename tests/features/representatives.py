"""The tiny forms that features are tried on here: dense, experts, latent, and GPT-2's own ways."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.config import apply_modifier, from_text, to_text
from dovetail.experiments import experiments
from dovetail.module import parameter_specs
from dovetail.parallel import MeshLayout

REPRESENTATIVES = ("tiny-lm", "qwen3-30b-a3b", "deepseek-v3", "gpt2")

every_representative = pytest.mark.parametrize("name", REPRESENTATIVES)


def with_features(experiment: str, *texts: str) -> Any:
    """Returns a tiny form with features as on the command line, which reads back from its text."""
    config = experiments()[experiment].tiny()
    for text in texts:
        config = apply_modifier(config, text)
    assert from_text(to_text(config)) == config
    return config


def tiny(name: str, *features: str) -> Any:
    """Returns a tiny form with features, for a run of two steps."""
    mesh = MeshLayout.Config(data=-1, fsdp=1)
    return with_features(name, *features).set(steps=2, writers={}, evaluators={}, mesh=mesh)


def shapes(config: Any) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every parameter, without making any."""
    return {path: spec.shape for path, spec in parameter_specs(config.build().model).items()}


def ends(found: dict[str, Any], ending: str) -> list[Any]:
    """Returns the values of the paths that end so."""
    return [value for path, value in found.items() if path.endswith(ending)]
