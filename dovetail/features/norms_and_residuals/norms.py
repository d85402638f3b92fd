"""The norms of the residual stream."""

from __future__ import annotations

from typing import Any

from dovetail.features.feature import feature

_NEEDS = {"dovetail.layers:BaseResidual": "there is no residual stream with norms"}


@feature("rms-norm", needs=_NEEDS)
def rms_norm(config: Any) -> Any:
    """RMSNorm for every norm of the residual stream (https://arxiv.org/abs/1910.07467)."""
    from dovetail.layers import RMSNorm
    from dovetail.layers.residual import with_residual_norm

    return with_residual_norm(config, RMSNorm.Config())


@feature("layer-norm", files=("layers/norms.py:LayerNorm",), needs=_NEEDS)
def layer_norm(config: Any) -> Any:
    """LayerNorm for every norm of the residual stream (https://arxiv.org/abs/1607.06450)."""
    from dovetail.layers.norms import LayerNorm
    from dovetail.layers.residual import with_residual_norm

    return with_residual_norm(config, LayerNorm.Config())


@feature("dynamic-tanh", files=("layers/norms.py:DynamicTanh",), needs=_NEEDS)
def dynamic_tanh(config: Any) -> Any:
    """Dynamic tanh (DyT) in place of every norm of the residual stream.

    https://arxiv.org/abs/2503.10622
    """
    from dovetail.layers.norms import DynamicTanh
    from dovetail.layers.residual import with_residual_norm

    return with_residual_norm(config, DynamicTanh.Config())


@feature("no-norm", files=("layers/norms.py:NoNorm",), needs=_NEEDS)
def no_norm(config: Any) -> Any:
    """No norms in the residual stream."""
    from dovetail.layers.norms import NoNorm
    from dovetail.layers.residual import with_residual_norm

    return with_residual_norm(config, NoNorm.Config())
