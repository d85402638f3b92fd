"""The scaling of Llama 3.1: `--with rope-llama3:factor=8`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "rope-llama3",
    kind="positions",
    builds_on=("rope",),
    files=("layers/positions/llama3_scaling.py", "models/rotary/llama3.py"),
    needs={
        "dovetail.layers.positions.scaling:FrequencyScaling": "there are no rotary frequencies to "
        "stretch"
    },
)
def llama3_scaling(config: Any, factor: float = 8.0, original_length: int | None = None) -> Any:
    """Stretches slow rotary pairs, and blends (https://arxiv.org/abs/2407.21783)."""
    from dovetail.layers.positions.llama3_scaling import Llama3Scaling
    from dovetail.layers.positions.scaling import FrequencyScaling

    trained = config.input.sequence_length if original_length is None else original_length
    scaling = Llama3Scaling.Config(factor=factor, original_length=trained)
    return replace(config, FrequencyScaling, scaling)
