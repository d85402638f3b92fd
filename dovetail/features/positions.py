"""What the features of positions share: a model is told of positions in one way alone."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace, select


def told_positions(config: Any, attention: Any = None, inputs: Any = None) -> Any:
    """Returns a config whose tokens know where they stand by these encodings, and by no other.

    Args:
        config: any tree.
        attention: the encoding of queries and keys, or a function from the old one; None means
            none.
        inputs: what is added to the vectors of tokens; None means nothing.
    """
    from dovetail.layers import AnyInputPositions, AnyPositions, NoInputPositions, NoPositions
    from dovetail.layers.attention.scores import PositionedScores

    for kind, new in (
        (AnyPositions, attention or NoPositions.Config()),
        (AnyInputPositions, inputs or NoInputPositions.Config()),
        (PositionedScores, lambda old: old.base),
    ):
        if select(config, kind).found:
            config = replace(config, kind, new)
    return config
