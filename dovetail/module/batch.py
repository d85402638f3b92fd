"""The batch of token sequences, and its spec.

One record serves three stages, so that shapes are declared once:

    Batch[np.ndarray]   made by an input on the host
    Batch[jax.Array]    read by a model on devices
    Batch[ArraySpec]    returned by `input.spec()`; plan and trainer compile from it without data

Padding has loss weight 0 and segment id 0. Segment ids count from 1 within each row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic

import jax
import numpy as np

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
class Batch(Generic[Leaf]):
    """A batch of token sequences; every field but `extras` is [batch, sequence]."""

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


BatchSpec = Batch[ArraySpec]
"""The spec of a batch, as `input.spec()` returns it."""

HostBatch = Batch[np.ndarray]
"""A batch of numpy arrays on the host."""


def sequence_batch_spec(
    batch_size: int, sequence_length: int, extras: dict[str, str] | None = None
) -> BatchSpec:
    """Returns the spec of a [batch, sequence] batch; `extras` maps further names to dtypes."""

    def spec(dtype: str) -> ArraySpec:
        return ArraySpec((batch_size, sequence_length), dtype, ("batch", "sequence"))

    return Batch(
        tokens=spec("int32"),
        targets=spec("int32"),
        positions=spec("int32"),
        segment_ids=spec("int32"),
        loss_weights=spec("float32"),
        extras={name: spec(dtype) for name, dtype in (extras or {}).items()},
    )
