"""The norms of the stream: which they are, and how to swap them all."""

from __future__ import annotations

from typing import Any, TypeVar

from dovetail.config import Config, replace
from dovetail.layers.norms.last import EndsInNorm
from dovetail.layers.norms.rms import AnyNorm
from dovetail.layers.residual.pre import NormedResidual

C = TypeVar("C", bound=Config[Any])


def with_stream_norm(config: C, norm: Config[Any]) -> C:
    """Returns the config with another norm in every residual joint and where it is scored.

    These are the norms of the stream. Those inside a mixer or a linear map (of queries and keys, of
    a latent vector) belong to it, and stay.
    """

    def at_the_end(part: Any) -> Any:
        return part.set(norm=replace(part.norm, AnyNorm, norm))

    config = replace(config, NormedResidual, lambda joint: replace(joint, AnyNorm, norm))
    return replace(config, EndsInNorm, at_the_end)
