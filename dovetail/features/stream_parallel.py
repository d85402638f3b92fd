"""Sequence parallelism of the stream: `--with stream-parallel`, where `mesh.model` is above 1."""

from __future__ import annotations

from typing import Any

from dovetail.features.feature import feature


@feature("stream-parallel", kind="parallelism")
def stream_parallel(config: Any) -> Any:
    """Devices that share layers split the tokens between layers, too (https://arxiv.org/abs/2205.05198)."""
    config.rules.rules = {**config.rules.rules, "stream": ("sequence", "model")}
    return config
