"""The persistent compilation cache: on by default, so that the second start is quick."""

from __future__ import annotations

import os
from pathlib import Path

import jax


def cache_folder() -> Path:
    """Returns Dovetail's folder in the user's cache."""
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (root if root.is_absolute() else Path.home() / ".cache") / "dovetail"


def use_compilation_cache() -> None:
    """Turns JAX's cache on, unless the user has set it up already."""
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
