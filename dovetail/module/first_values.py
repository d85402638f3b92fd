"""First values of arrays, each by a program that serves every array of its kind.

To XLA on a CPU each array of random numbers is a loop, and takes long to compile: a program of all
of them takes longer than the training step. Kinds are few, and stay the same when a model changes,
so what was compiled for one array serves the next, of this model or of another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from dovetail.module.specs import Spec, fold_in_numbers, path_numbers


def first_values(
    specs: Mapping[str, Spec], key: jax.Array, shardings: Mapping[str, Any] | None = None
) -> dict[str, jax.Array]:
    """Makes the first value of every array, each on its own shards."""
    seed: Any = jax.random.key_data(key)
    if not isinstance(seed, Tracer):
        seed = np.asarray(seed)  # as plain numbers, every process of several has it alike
    kind_of_key = jax.random.key_impl(key)
    return {
        path: _maker(spec, kind_of_key, None if shardings is None else shardings[path])(
            seed, np.asarray(path_numbers(path), np.uint32)
        )
        for path, spec in specs.items()
    }


def _maker(spec: Spec, kind_of_key: Any, sharding: Any) -> Callable[[Any, Any], jax.Array]:
    """Returns the program that makes arrays of one kind."""
    shape = (spec.shape, spec.stacked, spec.fan_in, spec.fan_out, spec.dtype)
    init = (type(spec.init), repr(getattr(spec.init, "config", spec.init)))
    kind = (shape, init, str(kind_of_key), sharding)
    if kind not in _makers:

        def make(seed: Any, numbers: Any) -> jax.Array:
            key = jax.random.wrap_key_data(seed, impl=kind_of_key)
            return spec.from_key(fold_in_numbers(key, numbers))

        _makers[kind] = jax.jit(make, out_shardings=sharding)
    return _makers[kind]


_makers: dict[Any, Callable[[Any, Any], jax.Array]] = {}
