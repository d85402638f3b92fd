"""Training in eight bits of floating point."""

from __future__ import annotations

from typing import ClassVar

from dovetail.layers.linear.rounded import RoundedProduct


class Fp8Product(RoundedProduct):
    """Products of e4m3 numbers, with gradients in e5m2 (https://arxiv.org/abs/2209.05433).

    Gradients need range more than digits. Hardware without such products converts and multiplies in
    a wider type: the same numbers, at no gain.
    """

    values: ClassVar[str] = "float8_e4m3fn"
    gradients: ClassVar[str] = "float8_e5m2"
    weight_gradients: ClassVar[str | None] = "float8_e5m2"
