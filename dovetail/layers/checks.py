"""Checks of sizes, for messages that name the field before any array is made."""

from __future__ import annotations

from typing import Any

from dovetail.config import Config, ConfigError


def require_positive(config: Config[Any], *names: str) -> None:
    """Raises if one of these fields is less than 1; None is allowed."""
    for name in names:
        size = getattr(config, name)
        if size is not None and size < 1:
            raise ConfigError(f"{config.locate(name)}: expected 1 or more, got {size}.")
