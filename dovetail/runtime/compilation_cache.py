"""The persistent compilation cache: on by default, so that the second start is quick."""

from __future__ import annotations

import jax

from dovetail.hardware import user_cache_folder


def use_compilation_cache() -> None:
    """Turns JAX's cache on, unless the user has set it up already."""
    if not getattr(jax.config, "jax_compilation_cache_dir", None):
        jax.config.update("jax_compilation_cache_dir", str(user_cache_folder() / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
