"""Rotary positions, of all features or of a part: `--with rope`, `--with partial-rope`."""

from __future__ import annotations

from typing import Any

from dovetail.features.feature import feature
from dovetail.features.positions import told_positions

_FILES = ("layers/positions/rotary.py", "layers/positions/interleaved.py", "models/rotary/")
_NEEDS = {"dovetail.layers:AnyPositions": "there are no queries and keys to rotate"}


@feature("rope", kind="positions", files=_FILES, needs=_NEEDS)
def rotary_positions(config: Any, base: float = 10_000.0) -> Any:
    """Queries and keys are rotated by their positions, unscaled; no other positions."""
    from dovetail.layers.positions.rotary import RotaryEmbedding
    from dovetail.layers.positions.scaling import NoScaling

    plain = RotaryEmbedding.Config(base=base, fraction=1.0, scaling=NoScaling.Config())
    return told_positions(config, attention=plain)


@feature("partial-rope", kind="positions", files=_FILES, needs=_NEEDS)
def partly_rotary_positions(config: Any, fraction: float = 0.5) -> Any:
    """Rotates the first part of each head alone; a base and a scaling that were set stay."""
    from dovetail.layers.positions.rotary import RotaryEmbedding

    return told_positions(config, attention=RotaryEmbedding.Config(fraction=fraction))
