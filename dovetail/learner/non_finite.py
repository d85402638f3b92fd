"""Non-finite guard: a step whose loss, gradients or extras are not finite is skipped and reported.

P trainable parameters (arrays).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.learner.state import Arrays

T = TypeVar("T")


@dataclass(frozen=True)
class FiniteCheck:
    """The gradient norm, and whether loss, gradients and extras are finite (see `StepReport`)."""

    gradient_norm: jax.Array
    finite: jax.Array
    non_finite_parameter: jax.Array
    finite_extras: Arrays


def check_finite(
    loss: jax.Array, gradients: Arrays, extras: Mapping[str, Any], all_paths: Sequence[str]
) -> FiniteCheck:
    """Returns the global norm, whether all is finite, and the first parameter that is not.

    The check costs nothing: each parameter's squared norm is needed for the global norm, and is not
    finite if any of its elements is not. It also overflows above 1e19, where an update would be
    useless anyway. Only extras are read once more.
    """
    paths = sorted(gradients)
    squares_P = jnp.stack([jnp.sum(jnp.square(gradients[p].astype(jnp.float32))) for p in paths])
    finite_P = jnp.isfinite(squares_P)
    norm = jnp.sqrt(squares_P.sum())
    loss_is_finite = jnp.isfinite(loss)
    # Frozen parameters have no gradients; the report's index counts all parameters.
    position = {path: index for index, path in enumerate(all_paths)}
    positions_P = jnp.asarray(np.array([position[path] for path in paths], np.int32))
    first = positions_P[jnp.argmin(finite_P)]
    finite_extras = {name: _all_finite(extra) for name, extra in extras.items()}
    only_gradients = loss_is_finite & ~finite_P.all()
    # This decides whether the step is finite; if it is not, `apply_if_finite` skips the update.
    finite = loss_is_finite & jnp.isfinite(norm)
    for extra_is_finite in finite_extras.values():
        finite &= extra_is_finite
    return FiniteCheck(
        gradient_norm=norm,
        finite=finite,
        non_finite_parameter=jnp.where(only_gradients, first, -1),
        finite_extras=finite_extras,
    )


def _all_finite(extra: Any) -> jax.Array:
    return jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(extra)]).all()


def apply_if_finite(finite: jax.Array, update: Callable[[T], T], state: T) -> T:
    """Returns the updated state if `finite`, else the same state, bit for bit.

    One `cond` around the update, not a `where` for each result. On an AdamW step of 41M parameters
    with donated state, `where` makes XLA copy (247 MB of temporaries, 1.41 times the time of an
    unguarded step); `cond` updates in place (184 MB, as unguarded, and 1.10 times).
    """
    return jax.lax.cond(finite, update, lambda unchanged: unchanged, state)
