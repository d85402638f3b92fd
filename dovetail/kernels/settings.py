"""Settings of a run's kernels: whether slow ones are allowed, and which are preferred."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dovetail.config import Part
from dovetail.kernels.registry import prefer, strict


class KernelSettings(Part):
    """Steers the choice of implementations."""

    class Config(Part.Config["KernelSettings"]):
        """By default every op chooses for itself, and a slow choice is a warning.

        `strict` makes it an error. `prefer` names implementations by op, such as
        `attention=reference`; one that cannot take a call is an error then. A slow one that is
        asked for by name is neither warned of nor refused. Both are for a run's steps and
        evaluations; text that a run writes as a sample is computed as its ops choose.
        """

        strict: bool = False
        prefer: dict[str, str] = {}

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.strict, self.prefer = config.strict, dict(config.prefer)
        with prefer(**self.prefer):  # an unknown name is an error at once
            pass

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Applies the settings to what is traced inside the block."""
        with strict(self.strict), prefer(**self.prefer):
            yield
