"""Products in integers of eight bits: `--with int8`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "int8",
    kind="precision",
    files=("layers/linear/int8.py",),
    needs={"dovetail.layers:Linear": "there are no products to round"},
    excludes={"dovetail.layers.linear.rounded:RoundedProduct": "a product is rounded once"},
)
def in_int8(config: Any) -> Any:
    """Every linear map outside `Exact` parts multiplies integers of eight bits."""
    from dovetail.layers import Exact
    from dovetail.layers.linear.int8 import Int8Product
    from dovetail.layers.linear.product import PlainProduct

    return replace(config, PlainProduct, Int8Product.Config(), outside=(Exact,))
