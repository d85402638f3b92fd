"""The run-time check of annotations that tests/conftest.py puts on every function of some rooms."""

from collections.abc import Callable
from typing import TypeVar

from beartype import beartype

F = TypeVar("F", bound=Callable[..., object])


def check_calls(function: F) -> F:
    """Makes a function check its arguments and result, unless it is a constructor.

    A record of arrays that JAX knows as a tree is also built with other leaves: `jax.tree.map`
    makes one of shardings or of specs, and that is right though its fields say arrays.
    """
    return function if function.__name__ == "__init__" else beartype(function)
