"""The batch record: what an input hands to a model, and what it promises before there is any data.

One record serves three stages, so that no stage needs a shape written down twice:

    Batch[np.ndarray]   what an input makes on the host
    Batch[jax.Array]    what a model receives on devices
    Batch[ArraySpec]    what an input promises; plan and trainer compile from it with no data

Padding has loss weight 0 and segment 0. Segments count from 1 within each row.
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
    """A batch of token sequences; every field is [batch, sequence], extras as they say."""

    tokens: Leaf
    """What the model reads (int32)."""
    targets: Leaf
    """What it should predict at each place (int32); arbitrary where the loss weight is 0."""
    positions: Leaf
    """The place of each token in its segment, from 0 (int32)."""
    segment_ids: Leaf
    """Which document of the row a token belongs to, from 1; 0 is padding (int32)."""
    loss_weights: Leaf
    """How much each target counts (float32); 0 for padding and across document boundaries."""
    extras: dict[str, Leaf] = field(default_factory=dict)
    """Further named arrays that some model, loss or metric asks for."""


@dataclass(frozen=True)
class ArraySpec:
    """The promise of an array: its shape, its dtype and the logical axis of each dimension."""

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
        """Returns what `jax.eval_shape` and `jit(...).lower` take in place of the array."""
        return jax.ShapeDtypeStruct(self.shape, np.dtype(self.dtype))


BatchSpec = Batch[ArraySpec]
"""What `input.spec()` returns: a batch whose leaves are promises."""

HostBatch = Batch[np.ndarray]
"""A batch of numpy arrays, as an input makes it."""


def sequence_batch_spec(
    batch_size: int, sequence_length: int, extras: dict[str, str] | None = None
) -> BatchSpec:
    """Returns the spec of a [batch, sequence] batch; `extras` gives further names with dtypes."""

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
