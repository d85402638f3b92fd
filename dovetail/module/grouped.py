"""grouped(): rows that each belong to one copy of a repeated child, without sorting out the copies.

`vmap` gives every copy the same number of rows. Where the numbers differ (tokens that were routed
to experts), the rows come sorted by copy, and the child runs once over all of them. Its parameters
then read as `Grouped` values, which stand for "each row meets the array of its own copy". A child
that is written with `@`, `+` and `*`, as linear maps, norms and adapters are, need not know.

N rows, X copies (experts), E in, F out.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from dovetail.module.context import Arrays, require_frame
from dovetail.module.crossing import Carried, absorb, run
from dovetail.module.layered import Layered
from dovetail.module.module import Module
from dovetail.module.specs import Spec

Product = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""From x_NE, weight_XEF and group_sizes_X to [N, F]: row n times the matrix of its group."""


def grouped(
    layer: Module,
    body: Callable[..., Any],
    *rows: Any,
    group_sizes: jax.Array,
    product: Product,
) -> Any:
    """Runs `body` once, over rows sorted by the copy of a repeated child that each belongs to.

    All axes of the rows but the last count as one row after the other, and the body keeps them as
    they are. Losses, summaries and outputs are those of all rows together; a random key is one for
    all rows. State has no rule: a body that writes a variable or a cache is refused.

    Args:
        layer: the repeated child that the body calls.
        body: from the rows to a result.
        rows: what the body is called with; the first says how many rows there are.
        group_sizes: how many rows each copy has [X]; rows after them are of no copy, and what they
            give means nothing. Inside a shard_map that splits the copies, X are those here.
        product: multiplies sorted rows by their matrices, such as
            `dovetail.kernels.grouped_matmul.grouped_matmul`.
    """
    frame = require_frame("grouped")
    layers = Layered.of(frame, layer, some=group_sizes.shape[0])
    _refuse_nested(layers)
    groups = Groups(group_sizes, math.prod(rows[0].shape[:-1]), product)
    # The index is that of no copy in particular: rows of all copies share one key.
    inner = layers.scope(
        layers.count,
        _as_grouped(layers.params, groups),
        _as_grouped(layers.variables, groups),
        {},
    )
    try:
        result, left = run(frame, inner, body, *rows)
    except (TypeError, ValueError) as error:
        if not isinstance(error, GroupedError) and Grouped.__name__ in str(error):
            raise GroupedError(f"{_HOW} JAX said: {error}") from error
        raise
    _refuse_state(left)
    absorb(frame, left)
    return result


def on_each_copy(function: Callable[..., Any], *values: Any) -> Any:
    """Calls a function of parameters; where they are grouped, once for the arrays of each copy.

    So that a part may do to its parameters what `@`, `+` and `*` do not say. The results are
    arrays, or grouped values like the parameters.
    """
    found = next((value for value in values if isinstance(value, Grouped)), None)
    if found is None:
        return function(*values)
    stacked = [value._stacked if isinstance(value, Grouped) else value for value in values]
    axes = [0 if isinstance(value, Grouped) else None for value in values]
    return jax.tree.map(found._with, jax.vmap(function, in_axes=axes)(*stacked))


def multiply(
    x: jax.Array,
    weight: Any,
    around: Callable[..., jax.Array],
) -> jax.Array:
    """Returns x @ weight, as a function makes it of the arrays and of how they are multiplied.

    Args:
        x: rows [..., in].
        weight: [in, out], or a grouped value of that shape.
        around: from (product, x, weight, *more) to the rows of the result, where
            `product(x, weight, *more)` multiplies. To a plain weight the product is `@`; grouped,
            x is [N, in] and the weight [X, in, out].
    """
    if not isinstance(weight, Grouped):
        return around(operator.matmul, x, weight)
    weight._check_matrix(x)
    groups, rows = weight._groups, x.reshape(-1, x.shape[-1])
    y = around(groups.product, rows, weight._stacked, groups.sizes_X)
    return y.reshape(*x.shape[:-1], weight.shape[1])


class GroupedError(TypeError):
    """A grouped value was used in another way than by `@`, `+`, `-`, `*` or `/`."""


class _NoSuchAttribute(GroupedError, AttributeError):
    """Also an AttributeError, so that hasattr() answers."""


@dataclass(frozen=True)
class Groups:
    """Which rows belong to which copy."""

    sizes_X: jax.Array
    count: int
    product: Product

    def of_rows(self) -> jax.Array:
        """Returns the copy that each row belongs to [N]."""
        copies = jnp.arange(self.sizes_X.shape[0])
        return jnp.repeat(copies, self.sizes_X, total_repeat_length=self.count)


class Grouped:
    """A parameter inside grouped(): to each row, the array of the row's own copy.

    Shape and type are those of one copy's array. Arithmetic with plain numbers and with other
    grouped values gives grouped values; arithmetic with rows gives rows.
    """

    __array_ufunc__ = None  # so that numpy leaves the operators to this class, as JAX does

    def __init__(self, stacked: jax.Array, groups: Groups, path: str) -> None:
        """Takes the arrays of all copies, stacked along the first axis."""
        self._stacked, self._groups, self._path = stacked, groups, path

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one copy's array."""
        return self._stacked.shape[1:]

    @property
    def ndim(self) -> int:
        """The number of axes of one copy's array."""
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        """The type of the numbers."""
        return self._stacked.dtype

    @property
    def T(self) -> Grouped:
        """Each copy's matrix, transposed."""
        return self._with(jnp.swapaxes(self._stacked, -1, -2)) if self.ndim == 2 else self

    def astype(self, dtype: Any) -> Grouped:
        """Returns the same in another type of number."""
        return self._with(self._stacked.astype(dtype))

    def __neg__(self) -> Grouped:
        """Changes the sign."""
        return self._with(-self._stacked)

    def __matmul__(self, other: Any) -> Grouped:
        """Multiplies the matrices of each copy."""
        if isinstance(other, Grouped) and self.ndim == other.ndim == 2:
            return self._with(self._stacked @ other._stacked)
        return self._refuse("Its rows stand on the left: write rows @ parameter.")

    def __rmatmul__(self, rows: Any) -> jax.Array:
        """Multiplies each row by the matrix of its copy."""
        self._check_matrix(rows)
        dtype = jnp.promote_types(rows.dtype, self.dtype)
        x_NE, weight_XEF = rows.reshape(-1, rows.shape[-1]), self._stacked
        y_NF = self._groups.product(
            x_NE.astype(dtype), weight_XEF.astype(dtype), self._groups.sizes_X
        )
        return y_NF.reshape(*rows.shape[:-1], self.shape[1])

    def __add__(self, other: Any) -> Any:
        """Adds."""
        return self._apply(operator.add, other)

    def __radd__(self, other: Any) -> Any:
        """Adds to rows or to a number."""
        return self._apply(operator.add, other, swapped=True)

    def __sub__(self, other: Any) -> Any:
        """Subtracts."""
        return self._apply(operator.sub, other)

    def __rsub__(self, other: Any) -> Any:
        """Subtracts from rows or from a number."""
        return self._apply(operator.sub, other, swapped=True)

    def __mul__(self, other: Any) -> Any:
        """Multiplies."""
        return self._apply(operator.mul, other)

    def __rmul__(self, other: Any) -> Any:
        """Multiplies rows or a number."""
        return self._apply(operator.mul, other, swapped=True)

    def __truediv__(self, other: Any) -> Any:
        """Divides."""
        return self._apply(operator.truediv, other)

    def __rtruediv__(self, other: Any) -> Any:
        """Divides rows or a number."""
        return self._apply(operator.truediv, other, swapped=True)

    def __getitem__(self, index: Any) -> NoReturn:
        """Refuses: rows of different copies have no common index."""
        self._refuse("It was indexed.")

    def __iter__(self) -> NoReturn:
        """Refuses."""
        self._refuse("It was iterated over.")

    def __getattr__(self, name: str) -> NoReturn:
        """Refuses what an array has and this has not; to Python's own questions it says no."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise _NoSuchAttribute(f"{self}: It was asked for .{name}. {_HOW}")

    def __repr__(self) -> str:
        """Says what it is."""
        return f"Grouped({self._path!r}, {self.dtype}{list(self.shape)} a row)"

    def _with(self, stacked: jax.Array) -> Grouped:
        return Grouped(stacked, self._groups, self._path)

    def _apply(self, operation: Any, other: Any, *, swapped: bool = False) -> Any:
        """Applies an operation element by element, to rows or to the arrays themselves."""
        if isinstance(other, Grouped):
            if other.shape != self.shape:
                self._refuse(f"{other} has another shape.")
            mine, result = other._stacked, self._with
        elif jnp.ndim(other) == 0:
            mine, result = other, self._with
        else:
            return _ordered(operation, self._of_rows(other), other, swapped)
        return result(_ordered(operation, self._stacked, mine, swapped))

    def _of_rows(self, rows: Any) -> jax.Array:
        """Returns the vector of each row's copy, in the shape of the rows."""
        if self.ndim > 1:
            self._refuse(f"Added to rows or multiplied by them, {self.shape} should be a vector.")
        self._check_rows(rows)
        vectors = self._stacked[self._groups.of_rows()]
        return vectors.reshape(*rows.shape[:-1], *(self.shape or (1,)))

    def _check_matrix(self, rows: Any) -> None:
        if self.ndim != 2:
            self._refuse(f"rows @ parameter needs a matrix a copy, and this is {self.shape}.")
        self._check_rows(rows)

    def _check_rows(self, rows: Any) -> None:
        found = math.prod(rows.shape[:-1])
        if found != self._groups.count:
            self._refuse(f"{found} rows {rows.shape} met {self._groups.count} rows' arrays.")

    def _refuse(self, what: str) -> NoReturn:
        raise GroupedError(f"{self}: {what} {_HOW}")


_HOW = (
    "Inside grouped(), a parameter stands for the array of each row's own copy, so it is not an "
    "array: write it as `rows @ parameter`, `rows + parameter` or `rows * parameter`, where the "
    "axes before the last stay as they came; or run the copies with vmap (for experts: a dispatch "
    "with a capacity)."
)


def _ordered(operation: Any, mine: Any, other: Any, swapped: bool) -> Any:
    return operation(other, mine) if swapped else operation(mine, other)


def _as_grouped(arrays: Arrays, groups: Groups) -> Arrays:
    return {path: Grouped(value, groups, path) for path, value in arrays.items()}


def _refuse_nested(layers: Layered) -> None:
    tree = layers.frame.scope.tree
    outer = len(tree.node(layers.layer).repeats)
    for path, spec in tree.specs(Spec, layers.layer).items():
        if spec.stacked > outer:
            raise GroupedError(
                f"{path!r} is repeated inside of {layers.call_path!r}, and grouped() gives each "
                "row one array. Run the copies with vmap (for experts: a dispatch with a capacity)."
            )


def _refuse_state(left: Carried) -> None:
    written = sorted([*left.variables, *left.cache])
    if written:
        raise GroupedError(
            f"State was written inside grouped(): {written}. Which rows each copy's value comes "
            "from is not stated: return it from the body, and assign it outside; or run the copies "
            "with vmap (for experts: a dispatch with a capacity)."
        )
