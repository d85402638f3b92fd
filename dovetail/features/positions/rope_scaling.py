"""RoPE frequency scaling, for contexts longer than those of training."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature

_NEEDS = {
    "dovetail.layers.positions.rotary:FrequencyScaling": "there are no RoPE frequencies to scale"
}


@feature(
    "rope-linear",
    builds_on=("rope",),
    files=("layers/positions/rope_scaling.py:LinearScaling", "models/rotary.py:LinearFormat"),
    needs=_NEEDS,
)
def linear_scaling(config: Any, factor: float = 2.0) -> Any:
    """Linear RoPE scaling (position interpolation).

    https://arxiv.org/abs/2306.15595
    """
    from dovetail.layers.positions.rope_scaling import LinearScaling
    from dovetail.layers.positions.rotary import FrequencyScaling

    return replace(config, FrequencyScaling, LinearScaling.Config(factor=factor))


@feature(
    "rope-ntk",
    builds_on=("rope",),
    files=("layers/positions/rope_scaling.py:NtkScaling",),
    needs=_NEEDS,
)
def ntk_scaling(config: Any, factor: float = 2.0) -> Any:
    """NTK-aware RoPE scaling: raises the base, so high frequencies hardly change."""
    from dovetail.layers.positions.rope_scaling import NtkScaling
    from dovetail.layers.positions.rotary import FrequencyScaling

    return replace(config, FrequencyScaling, NtkScaling.Config(factor=factor))


@feature(
    "rope-yarn",
    builds_on=("rope",),
    files=("layers/positions/rope_scaling.py:YarnScaling", "models/rotary.py:YarnFormat"),
    needs=_NEEDS,
)
def yarn_scaling(config: Any, factor: float = 4.0, original_length: int | None = None) -> Any:
    """YaRN: scales low RoPE frequencies and rescales attention scores.

    https://arxiv.org/abs/2309.00071
    """
    from dovetail.layers.positions.rope_scaling import YarnScaling
    from dovetail.layers.positions.rotary import FrequencyScaling

    trained = config.input.sequence_length if original_length is None else original_length
    scaling = YarnScaling.Config(factor=factor, original_length=trained)
    return replace(config, FrequencyScaling, scaling)


@feature(
    "rope-llama3",
    builds_on=("rope",),
    files=("layers/positions/rope_scaling.py:Llama3Scaling", "models/rotary.py:Llama3Format"),
    needs=_NEEDS,
)
def llama3_scaling(config: Any, factor: float = 8.0, original_length: int | None = None) -> Any:
    """Llama 3.1 RoPE scaling: scales low frequencies and interpolates between bands.

    https://arxiv.org/abs/2407.21783
    """
    from dovetail.layers.positions.rope_scaling import Llama3Scaling
    from dovetail.layers.positions.rotary import FrequencyScaling

    trained = config.input.sequence_length if original_length is None else original_length
    scaling = Llama3Scaling.Config(factor=factor, original_length=trained)
    return replace(config, FrequencyScaling, scaling)
