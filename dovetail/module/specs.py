"""Specs: shape, dtype, logical axes and initializer of a parameter or variable.

They exist before any array does. One tree of specs drives initialization, sharding, optimizer
state, checkpoint restore, planning and weight import.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Self, cast

import jax
import jax.numpy as jnp

from dovetail.config import ConfigOf
from dovetail.module.initializers import ConstantInitializer, Initializer, VarianceScaling

Axes = tuple[str | None, ...]


@dataclass(frozen=True)
class Spec:
    """The spec of one array of a module's state.

    Attributes:
        shape: the full shape, stacked axes first.
        axes: the logical name of each axis, for sharding rules; None is never sharded.
        init: initializes one layer's array.
        fan_in: the axes (of one layer's array) that a matmul contracts.
        fan_out: the axes that it produces. Empty fans mean: not a matrix (a lookup, a scale).
        fan_in_grows: whether fan_in grows with the model's width; an adapter's rank does not.
        stacked: how many leading axes repeat the same array over layers or experts.
        depths: for each stacked axis, the position of its index among the pieces of the path.
        keeps_dtype: whether it keeps its dtype when the module computes in a lower precision.
        active_share: the fraction of it that one token uses; less than 1 for experts.
    """

    shape: tuple[int, ...]
    axes: Axes
    init: Initializer
    dtype: str = "float32"
    fan_in: tuple[int, ...] = ()
    fan_out: tuple[int, ...] = ()
    fan_in_grows: bool = True
    stacked: int = 0
    depths: tuple[int, ...] = field(default=())
    keeps_dtype: bool = False
    active_share: Fraction = Fraction(1)

    def __post_init__(self) -> None:
        """Checks that every axis is named, and that the fans are axes of one layer's array."""
        if len(self.shape) != len(self.axes):
            raise ValueError(
                f"The shape {self.shape} has {len(self.shape)} axes, the names are {self.axes}. "
                "Name each axis (None for one that is never sharded)."
            )
        rank = len(self.layer_shape)
        outside = [axis for axis in (*self.fan_in, *self.fan_out) if not -rank <= axis < rank]
        if outside:
            raise ValueError(
                f"The fans name the axes {outside}, but one layer's array {self.layer_shape} has "
                f"only {rank}. Fans count from its first axis, stacked axes left out."
            )

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def active_size(self) -> int:
        """The number of elements that one token uses."""
        return int(self.size * self.active_share)

    @property
    def layer_shape(self) -> tuple[int, ...]:
        """The shape of one layer's array."""
        return self.shape[self.stacked :]

    @property
    def is_matrix(self) -> bool:
        """Whether one layer's array is the matrix of a matmul."""
        return bool(self.fan_in and self.fan_out)

    def read_dtype(self, dtype: str | None) -> str | None:
        """Returns the dtype it is read in, given the module's compute dtype; None means its own."""
        return None

    def stack(self, count: int, axis: str, depth: int, active: int | None = None) -> Self:
        """Returns the spec of `count` such arrays, stacked along a new first axis.

        `active` is how many of them one token uses; None means all.
        """
        share = Fraction(1) if active is None else Fraction(active, count)
        return replace(
            self,
            shape=(count, *self.shape),
            axes=(axis, *self.axes),
            stacked=self.stacked + 1,
            depths=(depth, *self.depths),
            active_share=self.active_share * share,
        )

    def layer_paths(self, path: str) -> list[str]:
        """Returns the path of each layer's array, such as `stack/layer/3/norm/scale`, in order."""
        pieces = path.split("/")
        paths = []
        for index in itertools.product(*(range(n) for n in self.shape[: self.stacked])):
            numbered = list(pieces)
            # Innermost first, so that earlier positions stay valid.
            for depth, number in reversed([*zip(self.depths, index, strict=True)]):
                numbered.insert(depth, str(number))
            paths.append("/".join(numbered))
        return paths

    def struct(self) -> jax.ShapeDtypeStruct:
        """Returns the shape and dtype as a ShapeDtypeStruct."""
        return jax.ShapeDtypeStruct(self.shape, jnp.dtype(self.dtype))

    def initial(self, key: jax.Array, path: str) -> jax.Array:
        """Initializes the array. It depends only on path and layer index, not on mesh or order."""
        return self.from_key(fold_in_path(key, path))

    def from_key(self, key: jax.Array) -> jax.Array:
        """Initializes the array from the key of its path."""
        fan_in = math.prod(self.layer_shape[axis] for axis in self.fan_in)
        fan_out = math.prod(self.layer_shape[axis] for axis in self.fan_out)

        def one_layer(layer_key: jax.Array) -> jax.Array:
            return self.init(layer_key, self.layer_shape, fan_in, fan_out)

        make = one_layer
        for count in reversed(self.shape[: self.stacked]):
            make = _over_layers(make, count)
        return make(key).astype(self.dtype)


@dataclass(frozen=True)
class ParameterSpec(Spec):
    """A trained array. `decays` says whether weight decay applies."""

    decays: bool = True

    def read_dtype(self, dtype: str | None) -> str | None:
        """Returns the compute dtype, unless it keeps its own."""
        return None if self.keeps_dtype else dtype


@dataclass(frozen=True)
class VariableSpec(Spec):
    """An array that is saved but not trained, such as a router's bias."""


def parameter(
    shape: tuple[int, ...],
    axes: Axes,
    init: ConfigOf[Initializer] | None = None,
    **attributes: Any,
) -> jax.Array:
    """Declares a parameter; assign it to an attribute in `__init__`, as in `self.weight = ...`.

    In methods `self.weight` is the array; hence the return type.
    """
    initializer = (init or VarianceScaling.Config()).build()
    return cast(jax.Array, ParameterSpec(shape, axes, initializer, **attributes))


def variable(
    shape: tuple[int, ...],
    axes: Axes,
    init: ConfigOf[Initializer] | None = None,
    **attributes: Any,
) -> jax.Array:
    """Declares a variable; methods read it as an array and update it by assignment."""
    initializer = (init or ConstantInitializer.Config()).build()
    return cast(jax.Array, VariableSpec(shape, axes, initializer, **attributes))


def in_dtype(value: Any, dtype: str | None) -> Any:
    """Casts a floating-point array; None leaves it unchanged."""
    is_cast = dtype is not None and jnp.issubdtype(value.dtype, jnp.floating)
    return value.astype(dtype) if is_cast else value


def fold_in_path(key: jax.Array, path: str) -> jax.Array:
    """Derives a key from a path; the same path gives the same key on every machine."""
    return fold_in_numbers(key, path_numbers(path))


def path_numbers(path: str) -> tuple[int, int]:
    """Returns the two numbers by which keys are derived from a path."""
    digest = hashlib.blake2b(path.encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def fold_in_numbers(key: jax.Array, numbers: Any) -> jax.Array:
    """Derives a key from two numbers."""
    return jax.random.fold_in(jax.random.fold_in(key, numbers[0]), numbers[1])


def _over_layers(make: Any, count: int) -> Any:
    def stacked(key: jax.Array) -> jax.Array:
        keys = jax.vmap(lambda index: jax.random.fold_in(key, index))(jnp.arange(count))
        return jax.vmap(make)(keys)

    return stacked
