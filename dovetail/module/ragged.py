"""ragged_vmap(): runs a repeated child on rows that are sorted by copy (see `jax.lax.ragged_dot`).

`vmap` gives every copy the same number of rows. Where the numbers differ, as for tokens routed to
experts, the rows are sorted by copy and the child runs once over all of them. Each of its
parameters is then a `GroupedParameter`: for every row, the array of that row's copy. A child that
uses its parameters only with `@`, `+` and `*` (linear maps, norms, adapters) runs unchanged.

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
from dovetail.module.effects import Effects, apply_effects, run_in_scope
from dovetail.module.module import Module
from dovetail.module.specs import Spec
from dovetail.module.stacked import StackedLayers

GroupedMatmul = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""From x_NE, weight_XEF and group_sizes_X to [N, F]: row n times the matrix of its group."""


def ragged_vmap(
    layer: Module,
    body: Callable[..., Any],
    *rows: Any,
    group_sizes: jax.Array,
    matmul: GroupedMatmul,
) -> Any:
    """Runs `body` once, over rows sorted by the copy of a repeated child that each belongs to.

    All axes of the rows but the last are flattened to one axis of rows; the body must not reshape
    them. Losses, summaries and outputs are those of all rows together, and all rows share one
    random key. A body that writes a variable or a cache entry is an error.

    Args:
        layer: the repeated child that the body calls.
        body: from the rows to a result.
        rows: the arguments of the body; the first one determines the number of rows.
        group_sizes: how many rows each copy has [X]. Results of rows beyond the sum are undefined.
            Inside a shard_map over the copies, X counts the copies of this device.
        matmul: multiplies sorted rows by their matrices, such as
            `dovetail.kernels.grouped_matmul.grouped_matmul`.
    """
    frame = require_frame("ragged_vmap")
    layers = StackedLayers.of(frame, layer, local_count=group_sizes.shape[0])
    _refuse_nested(layers)
    groups = Groups(group_sizes, math.prod(rows[0].shape[:-1]), matmul)
    # The index is that of no copy: rows of all copies share one key.
    inner = layers.scope(
        layers.count,
        _as_grouped(layers.params, groups),
        _as_grouped(layers.variables, groups),
        {},
    )
    try:
        result, effects = run_in_scope(frame, inner, body, *rows)
    except (TypeError, ValueError) as error:
        if not isinstance(error, GroupedError) and GroupedParameter.__name__ in str(error):
            raise GroupedError(f"{_HOW} JAX said: {error}") from error
        raise
    _refuse_state(effects)
    apply_effects(frame, effects)
    return result


def vmap_groups(function: Callable[..., Any], *values: Any) -> Any:
    """Calls a function of parameters, vmapped over the copies where they are grouped.

    For a module that needs more of its parameters than `@`, `+` and `*`. Where the parameters are
    grouped, so are the results.
    """
    found = next((value for value in values if isinstance(value, GroupedParameter)), None)
    if found is None:
        return function(*values)
    stacked = [value._stacked if isinstance(value, GroupedParameter) else value for value in values]
    axes = [0 if isinstance(value, GroupedParameter) else None for value in values]
    return jax.tree.map(found._with, jax.vmap(function, in_axes=axes)(*stacked))


def matmul_with(
    x: jax.Array,
    weight: Any,
    function: Callable[..., jax.Array],
) -> jax.Array:
    """Returns x @ weight as `function` computes it, such as a quantized matmul.

    Args:
        x: rows [..., in].
        weight: [in, out], or a grouped parameter of that shape.
        function: from (matmul, x, weight, *more) to the rows of the result. It multiplies by
            `matmul(x, weight, *more)`: `@` for a plain weight; for a grouped one the grouped
            matmul, where x is [N, in] and the weight [X, in, out].
    """
    if not isinstance(weight, GroupedParameter):
        return function(operator.matmul, x, weight)
    weight._check_matrix(x)
    groups, rows = weight._groups, x.reshape(-1, x.shape[-1])
    y = function(groups.matmul, rows, weight._stacked, groups.sizes_X)
    return y.reshape(*x.shape[:-1], weight.shape[1])


class GroupedError(TypeError):
    """A grouped parameter was used with another operation than `@`, `+`, `-`, `*` or `/`."""


class _NoSuchAttribute(GroupedError, AttributeError):
    """Also an AttributeError, so that hasattr() returns False."""


@dataclass(frozen=True)
class Groups:
    """Which rows belong to which copy: `count` rows, sorted."""

    sizes_X: jax.Array
    count: int
    matmul: GroupedMatmul

    def of_rows(self) -> jax.Array:
        """Returns the copy that each row belongs to [N]."""
        copies = jnp.arange(self.sizes_X.shape[0])
        return jnp.repeat(copies, self.sizes_X, total_repeat_length=self.count)


def _operators(operation: Callable[[Any, Any], Any]) -> tuple[Callable[..., Any], ...]:
    """Returns the methods for a grouped parameter on the left and on the right of an operator."""

    def left(self: GroupedParameter, other: Any) -> Any:
        return self._apply(operation, other)

    def right(self: GroupedParameter, other: Any) -> Any:
        return self._apply(lambda mine, theirs: operation(theirs, mine), other)

    return left, right


class GroupedParameter:
    """A parameter inside ragged_vmap(): for each row, the array of that row's copy.

    Shape and dtype are those of one copy's array. Arithmetic with scalars and other grouped
    parameters returns grouped parameters; arithmetic with rows returns rows.
    """

    __array_ufunc__ = None  # so that numpy leaves the operators to this class, as JAX does

    def __init__(self, stacked: jax.Array, groups: Groups, path: str) -> None:
        """Wraps the arrays of all copies, stacked along the first axis."""
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
        """The dtype."""
        return self._stacked.dtype

    @property
    def T(self) -> GroupedParameter:
        """Each copy's matrix, transposed."""
        return self._with(jnp.swapaxes(self._stacked, -1, -2)) if self.ndim == 2 else self

    def astype(self, dtype: Any) -> GroupedParameter:
        """Casts to another dtype."""
        return self._with(self._stacked.astype(dtype))

    def __neg__(self) -> GroupedParameter:
        return self._with(-self._stacked)

    def __matmul__(self, other: Any) -> GroupedParameter:
        if isinstance(other, GroupedParameter) and self.ndim == other.ndim == 2:
            return self._with(self._stacked @ other._stacked)
        return self._refuse("The rows must be on the left: write rows @ parameter.")

    def __rmatmul__(self, rows: Any) -> jax.Array:
        """Multiplies each row by the matrix of its copy."""
        self._check_matrix(rows)
        dtype = jnp.promote_types(rows.dtype, self.dtype)
        x_NE, weight_XEF = rows.reshape(-1, rows.shape[-1]), self._stacked
        y_NF = self._groups.matmul(
            x_NE.astype(dtype), weight_XEF.astype(dtype), self._groups.sizes_X
        )
        return y_NF.reshape(*rows.shape[:-1], self.shape[1])

    __add__, __radd__ = _operators(operator.add)
    __sub__, __rsub__ = _operators(operator.sub)
    __mul__, __rmul__ = _operators(operator.mul)
    __truediv__, __rtruediv__ = _operators(operator.truediv)

    def __getitem__(self, index: Any) -> NoReturn:
        """Refuses: rows of different copies have no common index."""
        self._refuse("It was indexed.")

    def __iter__(self) -> NoReturn:
        self._refuse("It was iterated over.")

    def __getattr__(self, name: str) -> NoReturn:
        """Refuses other attributes of arrays; dunder names are plain AttributeErrors."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise _NoSuchAttribute(f"{self}: It has no attribute {name!r}. {_HOW}")

    def __repr__(self) -> str:
        return f"GroupedParameter({self._path!r}, {self.dtype}{list(self.shape)} per row)"

    def _with(self, stacked: jax.Array) -> GroupedParameter:
        return GroupedParameter(stacked, self._groups, self._path)

    def _apply(self, operation: Callable[[Any, Any], Any], other: Any) -> Any:
        """Applies an operation element by element, to rows or to the arrays themselves."""
        if isinstance(other, GroupedParameter):
            if other.shape != self.shape:
                self._refuse(f"{other} has another shape.")
            operand: Any = other._stacked
        elif jnp.ndim(other) == 0:
            operand = other
        else:
            return operation(self._of_rows(other), other)
        return self._with(operation(self._stacked, operand))

    def _of_rows(self, rows: Any) -> jax.Array:
        """Returns the vector of each row's copy, in the shape of the rows."""
        if self.ndim > 1:
            self._refuse(f"Elementwise with rows, it must be a vector per copy, got {self.shape}.")
        self._check_rows(rows)
        vectors = self._stacked[self._groups.of_rows()]
        return vectors.reshape(*rows.shape[:-1], *(self.shape or (1,)))

    def _check_matrix(self, rows: Any) -> None:
        if self.ndim != 2:
            self._refuse(f"rows @ parameter needs a matrix per copy, got {self.shape}.")
        self._check_rows(rows)

    def _check_rows(self, rows: Any) -> None:
        found = math.prod(rows.shape[:-1])
        if found != self._groups.count:
            self._refuse(f"Expected {self._groups.count} rows, got {found} {rows.shape}.")

    def _refuse(self, what: str) -> NoReturn:
        raise GroupedError(f"{self}: {what} {_HOW}")


_HOW = (
    "Inside ragged_vmap(), a parameter is the array of each row's own copy, not one array: use it "
    "as `rows @ parameter`, `rows + parameter` or `rows * parameter`, with all axes of the rows "
    "but the last unchanged; or run the copies with vmap (for experts: a dispatch "
    "with a capacity)."
)


def _as_grouped(arrays: Arrays, groups: Groups) -> Arrays:
    return {path: GroupedParameter(value, groups, path) for path, value in arrays.items()}


def _refuse_nested(layers: StackedLayers) -> None:
    tree = layers.frame.scope.tree
    outer = len(tree.node(layers.layer).repeats)
    for path, spec in tree.specs(Spec, layers.layer).items():
        if spec.stacked > outer:
            raise GroupedError(
                f"{path!r} is repeated inside of {layers.call_path!r}, and ragged_vmap() gives "
                "each row one array. Run the copies with vmap (for experts: a dispatch with a "
                "capacity)."
            )


def _refuse_state(effects: Effects) -> None:
    written = sorted([*effects.variables, *effects.cache])
    if written:
        raise GroupedError(
            f"State was written inside ragged_vmap(): {written}. It would belong to all copies "
            "together: return it from the body, and assign it outside; or run the copies with vmap "
            "(for experts: a dispatch with a capacity)."
        )
