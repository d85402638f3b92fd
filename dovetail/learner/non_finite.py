"""Non-finite guard: a step whose loss or gradients are not finite is skipped and reported.

P trainable parameters (arrays).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.learner.state import Arrays

T = TypeVar("T")


@dataclass(frozen=True)
class FiniteCheck:
    """The gradient norm, and whether loss and gradients are finite (see `StepReport`)."""

    gradient_norm: jax.Array
    finite: jax.Array
    non_finite_parameter: jax.Array


def check_finite(loss: jax.Array, gradients: Arrays, all_paths: Sequence[str]) -> FiniteCheck:
    """Returns the global norm, whether all is finite, and the first parameter that is not.

    The check costs nothing: each parameter's squared norm is needed for the global norm, and is not
    finite if any of its elements is not. It also overflows above 1e19, where an update would be
    useless anyway.
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
    only_gradients = loss_is_finite & ~finite_P.all()
    return FiniteCheck(
        gradient_norm=norm,
        # This decides whether the step is finite; if it is not, `apply_if_finite` skips the update.
        finite=loss_is_finite & jnp.isfinite(norm),
        non_finite_parameter=jnp.where(only_gradients, first, -1),
    )


def apply_if_finite(finite: jax.Array, update: Callable[[T], T], state: T) -> T:
    """Returns the updated state if `finite`, else the same state, bit for bit.

    One `cond` around the update, not a `where` for each result. On an AdamW step of 41M parameters
    with donated state, `where` makes XLA copy (247 MB of temporaries, 1.41 times the time of an
    unguarded step); `cond` updates in place (184 MB, as unguarded, and 1.10 times).
    """
    return jax.lax.cond(finite, update, lambda unchanged: unchanged, state)
