"""Quantized matmuls in training."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature

_NEEDS = {"dovetail.layers:Linear": "there are no matmuls to quantize"}
_EXCLUDES = {
    "dovetail.layers.linear.quantized:QuantizedMatmul": "its matmuls are quantized already"
}


@feature("fp8", files=("layers/linear/quantized.py:Fp8Matmul",), needs=_NEEDS, excludes=_EXCLUDES)
def fp8(config: Any) -> Any:
    """FP8 matmuls in every linear layer outside `PrecisionSensitive` components."""
    from dovetail.layers import PrecisionSensitive
    from dovetail.layers.linear.linear import Matmul
    from dovetail.layers.linear.quantized import Fp8Matmul

    return replace(config, Matmul, Fp8Matmul.Config(), outside=(PrecisionSensitive,))


@feature("int8", files=("layers/linear/quantized.py:Int8Matmul",), needs=_NEEDS, excludes=_EXCLUDES)
def int8(config: Any) -> Any:
    """INT8 matmuls in every linear layer outside `PrecisionSensitive` components."""
    from dovetail.layers import PrecisionSensitive
    from dovetail.layers.linear.linear import Matmul
    from dovetail.layers.linear.quantized import Int8Matmul

    return replace(config, Matmul, Int8Matmul.Config(), outside=(PrecisionSensitive,))
