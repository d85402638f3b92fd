"""Position encodings. Each feature replaces whatever encoding the model has."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace, select
from dovetail.features.feature import feature


@feature(
    "rope",
    files=("layers/positions/rotary.py", "models/rotary.py"),
    needs={"dovetail.layers:BasePositions": "there are no queries and keys to rotate"},
)
def rope(config: Any, base: float = 10_000.0) -> Any:
    """Rotary position embeddings (RoPE), without frequency scaling.

    https://arxiv.org/abs/2104.09864
    """
    from dovetail.layers.positions.rotary import NoScaling, rotary

    plain = {"base": base, "fraction": 1.0, "scaling": NoScaling.Config()}
    return _replace_positions(config, attention=lambda old: rotary(old, **plain))


@feature(
    "partial-rope",
    builds_on=("rope",),
    needs={"dovetail.layers:BasePositions": "there are no queries and keys to rotate"},
)
def partial_rope(config: Any, fraction: float = 0.5) -> Any:
    """Partial RoPE: rotates only the first `fraction` of each head.

    An existing RoPE keeps its base, scaling and pairing.
    """
    from dovetail.layers.positions.rotary import rotary

    return _replace_positions(config, attention=lambda old: rotary(old, fraction=fraction))


@feature(
    "alibi",
    files=("layers/positions/alibi.py",),
    needs={"dovetail.layers:Scores": "there are no attention scores to bias"},
)
def alibi(config: Any) -> Any:
    """ALiBi: a penalty on scores that is linear in distance, with a slope per head.

    https://arxiv.org/abs/2108.12409
    """
    from dovetail.layers import Scores
    from dovetail.layers.positions.alibi import Alibi

    return replace(_replace_positions(config), Scores, Alibi.Config())


@feature(
    "learned-positions",
    files=("layers/positions/learned.py",),
    needs={
        "dovetail.layers:BaseInputPositions": "there are no token embeddings to add positions to"
    },
    excludes={
        "dovetail.layers.positions.learned:LearnedPositions": "set its length with key.path=value"
    },
)
def learned_positions(config: Any, length: int | None = None) -> Any:
    """Learned absolute position embeddings; by default as many as the training sequence length."""
    from dovetail.layers.positions.learned import LearnedPositions

    length = config.input.sequence_length if length is None else length
    return _replace_positions(config, inputs=LearnedPositions.Config(length=length))


@feature(
    "no-positions",
    needs={"dovetail.layers:BasePositions": "there is no position encoding to remove"},
)
def no_positions(config: Any) -> Any:
    """No position encoding (NoPE): the causal mask is the only source of order.

    https://arxiv.org/abs/2305.19466
    """
    return _replace_positions(config)


def _replace_positions(config: Any, attention: Any = None, inputs: Any = None) -> Any:
    """Replaces every position encoding of a config, so that the model has one alone.

    Args:
        config: any tree.
        attention: the encoding of queries and keys, or a function from the old one; None for none.
        inputs: what is added to the token embeddings; None for nothing.
    """
    from dovetail.layers import BaseInputPositions, BasePositions, NoInputPositions, NoPositions
    from dovetail.layers.attention.scores import PositionalScores

    for kind, new in (
        (BasePositions, attention or NoPositions.Config()),
        (BaseInputPositions, inputs or NoInputPositions.Config()),
        (PositionalScores, lambda old: old.base),
    ):
        if select(config, kind).found:
            config = replace(config, kind, new)
    return config
