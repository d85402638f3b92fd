"""Ready policies of remat, by the names that people know them by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dovetail.config import ConfigError, ConfigOf
from dovetail.parallel.remat import KeepAll, KeepDots, KeepNothing, KeepTags, Remat

_READY: Mapping[str, Callable[[], Any]] = {
    "nothing": KeepNothing.Config,
    "dots": KeepDots.Config,
    "attention": lambda: KeepTags.Config(names=("attention_output",)),
    "everything": KeepAll.Config,
}


def named_remat(keep: tuple[str, ...]) -> ConfigOf[Remat]:
    """Returns the config of a ready policy by its name, or of one that keeps these tags."""
    ready = [name for name in keep if name in _READY]
    if not keep or (ready and len(keep) > 1):
        raise ConfigError(
            f"keep: expected one of {', '.join(_READY)}, or a list of tags, got {list(keep)}."
        )
    found: ConfigOf[Remat] = _READY[ready[0]]() if ready else KeepTags.Config(names=keep)
    return found
