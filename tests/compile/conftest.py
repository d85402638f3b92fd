"""Everything here is marked `compile`: `make compile` runs it, and installs the compilers.

The functions with the most cases are marked `rotating`: `make compile` runs a third of the cases of
each, chosen by the commit. One case takes up to half a minute.
"""

from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

HERE = Path(__file__).parent

ROTATING = (
    "test_attention.py::test_splash_on_tpus",
    "test_attention.py::test_triton_on_gpus",
    "test_mixtures.py::test_on_a_cube_of_tpus",
    "test_mixtures.py::test_over_two_hosts_of_gpus",
    "test_mixtures.py::test_over_two_slices_of_tpus",
    "test_ring.py::test_on_gpus",
    "test_ring.py::test_on_tpus",
)


@pytest.hookimpl(tryfirst=True)  # before the conftest above chooses a third
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.compile)
            if item.nodeid.partition("[")[0].endswith(ROTATING):
                item.add_marker(pytest.mark.rotating)


@pytest.fixture(autouse=True)
def _no_cache() -> Iterator[None]:
    """Leaves the cache alone: what is compiled for no device can be stored there, not loaded."""
    jax.config.update("jax_enable_compilation_cache", False)
    yield
    jax.config.update("jax_enable_compilation_cache", True)
