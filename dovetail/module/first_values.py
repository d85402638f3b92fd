"""The first values of arrays: each depends on its path and layer index alone, not on mesh or order.

To compile them takes longer than one would think: to XLA every derivation of a key is a loop, and
so is every array of random numbers. So the keys of all arrays are derived together, and arrays of
one kind share a program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from dovetail.module.specs import Spec, fold_in_numbers, path_numbers

Specs = Mapping[str, Spec]


def first_values(specs: Specs, key: jax.Array) -> dict[str, jax.Array]:
    """Returns the first value of every array. Pure, for those who trace it."""
    return {path: specs[path].from_keys(keys) for path, keys in _keys(specs, key).items()}


def make_first_values(
    specs: Specs, key: jax.Array, shardings: Mapping[str, Any] | None = None
) -> dict[str, jax.Array]:
    """Makes the same, now, each array on its own shards and by a program of its own kind."""
    if not specs:
        return {}
    sharding = None if shardings is None else _on_every_device(next(iter(shardings.values())))
    keys = jax.jit(functools.partial(_keys, specs), out_shardings=sharding)(key)
    return {
        path: _maker(spec, None if shardings is None else shardings[path])(keys[path])
        for path, spec in specs.items()
    }


def _maker(spec: Spec, sharding: Any) -> Callable[[jax.Array], jax.Array]:
    """Returns the program that makes arrays of one kind."""
    shape = (spec.shape, spec.stacked, spec.fan_in, spec.fan_out)
    kind = (
        shape,
        spec.dtype,
        type(spec.init),
        repr(getattr(spec.init, "config", spec.init)),
        sharding,
    )
    if kind not in _makers:
        _makers[kind] = jax.jit(spec.from_keys, out_shardings=sharding)
    return _makers[kind]


_makers: dict[Any, Callable[[jax.Array], jax.Array]] = {}


def _on_every_device(sharding: Any) -> Any:
    return NamedSharding(sharding.mesh, PartitionSpec())


def _keys(specs: Specs, key: jax.Array) -> dict[str, jax.Array]:
    """Returns a key for each layer's array, by path."""
    if not specs:
        return {}
    numbers = np.asarray([path_numbers(path) for path in specs], np.uint32)
    keys = dict(zip(specs, jax.vmap(fold_in_numbers, (None, 0))(key, numbers), strict=True))
    for depth in range(max(spec.stacked for spec in specs.values())):
        counts = {path: spec.shape[depth] for path, spec in specs.items() if spec.stacked > depth}
        keys |= _one_deeper({path: keys[path] for path in counts}, counts)
    return keys


def _one_deeper(keys: dict[str, jax.Array], counts: dict[str, int]) -> dict[str, jax.Array]:
    """Returns, for each key of each array, so many keys along a new last axis."""
    flat = jnp.concatenate([each.reshape(-1) for each in keys.values()])
    times = np.repeat([counts[path] for path in keys], [each.size for each in keys.values()])
    owners = np.repeat(np.arange(flat.size), times)
    index = np.concatenate([np.arange(count) for count in times])
    found = jax.vmap(jax.random.fold_in)(flat[owners], index)
    stops = np.cumsum([each.size * counts[path] for path, each in keys.items()])[:-1]
    parts = zip(keys.items(), jnp.split(found, stops), strict=True)
    return {path: part.reshape(*each.shape, counts[path]) for (path, each), part in parts}
