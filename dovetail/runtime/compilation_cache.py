"""JAX's persistent compilation cache, on by default: the second run compiles nothing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax

from dovetail.utils import user_cache_folder


def use_compilation_cache() -> None:
    """Enables JAX's persistent compilation cache, unless the user has configured it."""
    if not getattr(jax.config, "jax_compilation_cache_dir", None):
        jax.config.update("jax_compilation_cache_dir", str(user_cache_folder() / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


@contextlib.contextmanager
def count_cache_hits() -> Iterator[Callable[[], int]]:
    """Yields a function that returns how many programs this thread loaded from the cache."""
    hits, thread = 0, threading.get_ident()

    def listen(event: str, **_: Any) -> None:
        nonlocal hits
        if threading.get_ident() == thread:  # others may compile at the same time
            hits += event == "/jax/compilation_cache/cache_hits"

    jax.monitoring.register_event_listener(listen)
    try:
        yield lambda: hits
    finally:
        jax.monitoring.unregister_event_listener(listen)
