"""Residual connections: where the norm is applied, and how the output is scaled."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature

_NEEDS = {"dovetail.layers:BaseResidual": "there is no residual connection with a norm"}


@feature("pre-norm", needs=_NEEDS)
def pre_norm(config: Any) -> Any:
    """Pre-norm: normalizes the input of each sublayer (https://arxiv.org/abs/2002.04745)."""
    from dovetail.layers import BaseResidual, PreNorm

    return replace(config, BaseResidual, PreNorm.Config())


@feature("post-norm", files=("layers/residual.py:PostNorm",), needs=_NEEDS)
def post_norm(config: Any) -> Any:
    """Post-norm: normalizes the residual stream after each addition.

    The decoder's final norm stays (https://arxiv.org/abs/1706.03762).
    """
    from dovetail.layers import BaseResidual
    from dovetail.layers.residual import PostNorm

    return replace(config, BaseResidual, PostNorm.Config())


@feature("sandwich-norm", files=("layers/residual.py:SandwichNorm",), needs=_NEEDS)
def sandwich_norm(config: Any) -> Any:
    """Sandwich norm: normalizes both the input and the output of each sublayer.

    Both norms are of one kind (CogView, https://arxiv.org/abs/2105.13290).
    """
    from dovetail.layers import BaseResidual
    from dovetail.layers.residual import SandwichNorm

    def with_output_norm(residual: Any) -> Any:
        return residual.set(output_norm=residual.norm)

    config = replace(config, BaseResidual, SandwichNorm.Config())
    return replace(config, SandwichNorm, with_output_norm)


@feature("output-norm", files=("layers/residual.py:OutputNorm",), needs=_NEEDS)
def output_norm(config: Any) -> Any:
    """Output norm: normalizes the output of each sublayer, not its input (OLMo 2).

    https://arxiv.org/abs/2501.00656
    """
    from dovetail.layers import BaseResidual
    from dovetail.layers.residual import OutputNorm

    return replace(config, BaseResidual, OutputNorm.Config())


@feature(
    "depth-scaled",
    files=("layers/scaled_residual.py",),
    needs={
        "dovetail.layers:BaseResidual": "there is no residual connection to scale",
        "dovetail.layers:Decoder": "there are no layers to count",
    },
    excludes={"dovetail.layers.scaled_residual:ScaledResidual": "it applies only once"},
)
def depth_scaled(config: Any) -> Any:
    """Depth scaling: multiplies sublayer outputs by 1/sqrt(number of sublayers).

    The factor is fixed, so it holds whatever the optimizer does. GPT-2 scales the initialization
    instead, to the same end.
    """
    from dovetail.layers import Decoder
    from dovetail.layers.scaled_residual import count_residuals, with_scaled_residuals

    def scaled(decoder: Any) -> Any:
        return with_scaled_residuals(decoder, count_residuals(decoder.stack) ** -0.5)

    return replace(config, Decoder, scaled)
