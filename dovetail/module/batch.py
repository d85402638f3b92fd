"""The batch of token sequences, and its spec.

One record serves three stages, so that shapes are declared once:

    TokenBatch[np.ndarray]   made by an input on the host
    TokenBatch[jax.Array]    read by a model on devices
    TokenBatch[ArraySpec]    returned by `input.spec()`: what plan and trainer compile from

Padding has loss weight 0 and segment id 0. Segment ids count from 1 within each row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, runtime_checkable

import jax
import numpy as np

from dovetail.config import ConfigError

if TYPE_CHECKING:
    # A default for the type variable is only in the standard library from Python 3.13 on; type
    # checkers know it through typing_extensions, which therefore need not be installed.
    from typing_extensions import TypeVar

    Leaf = TypeVar("Leaf", default=jax.Array)
else:
    from typing import TypeVar

    Leaf = TypeVar("Leaf")


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class TokenBatch(Generic[Leaf]):
    """A batch of token sequences; every field but the last two is [batch, sequence]."""

    tokens: Leaf
    """The input token ids (int32)."""
    targets: Leaf
    """The token ids to predict (int32); arbitrary where the loss weight is 0."""
    positions: Leaf
    """The position of each token in its segment, from 0 (int32)."""
    segment_ids: Leaf
    """The document of the row that a token belongs to, from 1; 0 is padding (int32)."""
    loss_weights: Leaf
    """The weight of each target (float32); 0 for padding and across document boundaries."""
    extras: dict[str, Leaf] = field(default_factory=dict)
    """Further named arrays for some model, loss or metric."""
    axis_positions: Leaf | None = None
    """Positions on several axes [batch, sequence, axes] (int32), such as the time, height and width
    of image patches; None if tokens have one position, that of `positions`."""

    def items(self) -> dict[str, int]:
        """Returns how many tokens the batch has, padding included."""
        tokens: Any = self.tokens
        return {"tokens": math.prod(tokens.shape)}


@dataclass(frozen=True)
class ArraySpec:
    """The shape, dtype and logical axes of an array."""

    shape: tuple[int, ...]
    dtype: str
    axes: tuple[str | None, ...]

    def __post_init__(self) -> None:
        """Checks that every dimension has its logical axis."""
        if len(self.shape) != len(self.axes):
            raise ValueError(
                f"ArraySpec: {len(self.shape)} dimensions {self.shape} but {len(self.axes)} "
                f"logical axes {self.axes}. Name one for each dimension (None for an unnamed one)."
            )

    def struct(self) -> jax.ShapeDtypeStruct:
        """Returns the ShapeDtypeStruct, for `jax.eval_shape` and `jit(...).lower`."""
        return jax.ShapeDtypeStruct(self.shape, np.dtype(self.dtype))


BatchSpec = TokenBatch[ArraySpec]
"""The spec of a batch, as `input.spec()` returns it."""

HostBatch = TokenBatch[np.ndarray]
"""A batch of numpy arrays on the host."""


@runtime_checkable
class CountsItems(Protocol):
    """A batch that says how many items of what kind it has, for throughput."""

    def items(self) -> Mapping[str, int]:
        """Returns numbers by kind, such as {"images": 64}; the first kind is the main one."""
        ...


def batch_items(spec: Any) -> dict[str, int]:
    """Returns how many items of what kind a batch has; by default, rows as `examples`."""
    if isinstance(spec, CountsItems):
        return dict(spec.items())
    return {"examples": batch_size(spec)}


def batch_size(spec: Any) -> int:
    """Returns the number of rows of a batch: the first axis, which all its arrays share."""
    sizes = {leaf.shape[0] if leaf.shape else None for leaf in jax.tree.leaves(spec)}
    if len(sizes) != 1 or None in sizes:
        shapes = sorted({str(leaf.shape) for leaf in jax.tree.leaves(spec)})
        raise ConfigError(
            "input: expected a batch whose arrays share their first axis, got shapes "
            f"{', '.join(shapes) or 'of no array'}. Is the batch a registered dataclass?"
        )
    size = int(sizes.pop() or 0)
    if size < 1:
        raise ConfigError(f"input.batch_size: expected a batch of 1 or more rows, got {size}.")
    return size


def sequence_batch_spec(
    batch_size: int, sequence_length: int, extras: dict[str, str] | None = None
) -> BatchSpec:
    """Returns the spec of a [batch, sequence] batch; `extras` maps further names to dtypes."""

    def spec(dtype: str) -> ArraySpec:
        return ArraySpec((batch_size, sequence_length), dtype, ("batch", "sequence"))

    return TokenBatch(
        tokens=spec("int32"),
        targets=spec("int32"),
        positions=spec("int32"),
        segment_ids=spec("int32"),
        loss_weights=spec("float32"),
        extras={name: spec(dtype) for name, dtype in (extras or {}).items()},
    )


def token_batch(tokens: np.ndarray) -> HostBatch:
    """Returns the batch in which each row [B, S] is one document, and predicts its next tokens."""
    rows, length = tokens.shape
    if length < 2:
        raise ConfigError(f"expected rows of at least 2 tokens, to predict one, got {length}.")
    inputs = np.asarray(tokens[:, :-1], np.int32)
    return TokenBatch(
        tokens=inputs,
        targets=np.asarray(tokens[:, 1:], np.int32),
        positions=np.broadcast_to(np.arange(length - 1, dtype=np.int32), inputs.shape),
        segment_ids=np.ones((rows, length - 1), np.int32),
        loss_weights=np.ones((rows, length - 1), np.float32),
    )
