"""What ends in a norm, behind which tokens are scored."""

from __future__ import annotations

from typing import Any, Generic

from dovetail.config import REQUIRED, ConfigOf, T_co
from dovetail.layers.interfaces import TokenMap
from dovetail.layers.norms.rms import RMSNorm
from dovetail.module import Module


class EndsInNorm(Module):
    """A decoder, or a further head: `replace(config, EndsInNorm, ...)` finds all last norms.

    What is scored comes from one of them, so whoever scales scores or swaps norms means them all.
    """

    class Config(Module.Config[T_co], Generic[T_co]):
        """The width is set by the parent."""

        width: int = REQUIRED
        norm: ConfigOf[TokenMap] = RMSNorm.Config()

    def __init__(self, config: Config[Any]) -> None:
        super().__init__(config)
        self.norm = config.norm.build(width=config.width)
