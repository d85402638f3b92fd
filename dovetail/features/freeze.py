"""Freezing: `--with 'freeze:patterns=("decoder/embedding/*",)'`."""

from __future__ import annotations

from typing import Any

from dovetail.features.feature import feature


@feature("freeze", kind="adaptation")
def frozen(config: Any, patterns: tuple[str, ...] = ("decoder/embedding/*",)) -> Any:
    """Parameters whose path a pattern matches stay as they are; `!` says which do not."""
    config.learner.frozen = (*config.learner.frozen, *patterns)
    return config
