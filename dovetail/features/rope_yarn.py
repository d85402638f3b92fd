"""YaRN: `--with rope-yarn:factor=4`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "rope-yarn",
    kind="positions",
    builds_on=("rope",),
    files=("layers/positions/yarn_scaling.py", "models/rotary/yarn.py"),
    needs={
        "dovetail.layers.positions.scaling:FrequencyScaling": "there are no rotary frequencies to "
        "stretch"
    },
)
def yarn_scaling(config: Any, factor: float = 4.0, original_length: int | None = None) -> Any:
    """Stretches slow rotary pairs and sharpens attention (https://arxiv.org/abs/2309.00071)."""
    from dovetail.layers.positions.scaling import FrequencyScaling
    from dovetail.layers.positions.yarn_scaling import YarnScaling

    trained = config.input.sequence_length if original_length is None else original_length
    scaling = YarnScaling.Config(factor=factor, original_length=trained)
    return replace(config, FrequencyScaling, scaling)
