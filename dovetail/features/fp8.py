"""Products in floating point of eight bits: `--with fp8`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "fp8",
    kind="precision",
    files=("layers/linear/fp8.py",),
    needs={"dovetail.layers:Linear": "there are no products to round"},
    excludes={"dovetail.layers.linear.rounded:RoundedProduct": "a product is rounded once"},
)
def in_fp8(config: Any) -> Any:
    """Every linear map outside `Exact` parts multiplies floating point of eight bits."""
    from dovetail.layers import Exact
    from dovetail.layers.linear.fp8 import Fp8Product
    from dovetail.layers.linear.product import PlainProduct

    return replace(config, PlainProduct, Fp8Product.Config(), outside=(Exact,))
