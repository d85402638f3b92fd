"""Everything here is marked `compile`: `make compile` runs it, and installs the compilers."""

from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.compile)


@pytest.fixture(autouse=True)
def _no_cache() -> Iterator[None]:
    """Leaves the cache alone: what is compiled for no device can be stored there, not loaded."""
    jax.config.update("jax_enable_compilation_cache", False)
    yield
    jax.config.update("jax_enable_compilation_cache", True)
