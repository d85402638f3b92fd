"""Training in integers of eight bits."""

from __future__ import annotations

from typing import ClassVar

from dovetail.layers.linear.rounded import RoundedProduct


class Int8Product(RoundedProduct):
    """Products of int8 numbers; only the gradient of the weight is computed in the wider type.

    That one sums over all tokens of a batch, so its errors do not average out and it is where int8
    fails first: SwitchBack (https://arxiv.org/abs/2304.13013) leaves it out for the same reason.
    """

    values: ClassVar[str] = "int8"
    gradients: ClassVar[str] = "int8"
    weight_gradients: ClassVar[str | None] = None
