"""Kernel settings of a run: whether slow implementations are allowed, and which are preferred."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dovetail.config import Component
from dovetail.kernels.dispatch import prefer, strict


class KernelSettings(Component):
    """Steers the choice of implementations."""

    class Config(Component.Config["KernelSettings"]):
        """By default every op chooses for itself, and a slow choice is a warning.

        `strict` makes it an error. `prefer` names implementations by op, such as
        `attention=reference`; if one does not support a call, that is an error. A slow one that is
        preferred is neither warned about nor refused. Both apply to training and evaluation steps,
        not to the samples that a run generates.
        """

        strict: bool = False
        prefer: dict[str, str] = {}

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.strict = config.strict
        self.prefer = dict(config.prefer)
        with prefer(**self.prefer):  # an unknown name is an error at once
            pass

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Applies the settings to what is traced inside the block."""
        with strict(self.strict), prefer(**self.prefer):
            yield
