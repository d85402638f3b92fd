"""The context of a layer's call: what is known about the tokens, beside their activations."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.module import Batch


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True)
class TokenContext:
    """The position of each token within its segment, and its segment id (0 is padding).

    A token with segment id 0 is neither attended to nor cached. A layer may hide tokens from its
    children in this way (`hide`).

    `contiguous` promises that padding only precedes or follows the tokens of a sequence, in all
    layers and all calls that share a cache. A cache then need not store which of its slots are
    written. A context does not promise it unless `promise_contiguous` says so; every change of the
    segment ids withdraws the promise, `dataclasses.replace` included.
    """

    positions_BS: jax.Array
    segment_ids_BS: jax.Array
    contiguous: bool = field(default=False, init=False)

    @classmethod
    def of(cls, batch: Batch) -> TokenContext:
        """Returns the context of a training batch, whose padding never interrupts a document."""
        return cls(batch.positions, batch.segment_ids).promise_contiguous()

    def promise_contiguous(self) -> TokenContext:
        """Returns the context with the promise that no token of a sequence is hidden."""
        return self._with_contiguous(True)

    def hide(self, hidden_BS: jax.Array) -> TokenContext:
        """Returns a context in which some tokens have segment id 0, as for a layer they skip."""
        return dataclasses.replace(
            self, segment_ids_BS=jnp.where(hidden_BS, 0, self.segment_ids_BS)
        )

    def _with_contiguous(self, contiguous: bool) -> TokenContext:
        result = dataclasses.replace(self)
        object.__setattr__(result, "contiguous", contiguous)
        return result

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        """Returns the arrays with their names, and the static part."""
        names = ("positions_BS", "segment_ids_BS")
        keys = jax.tree_util.GetAttrKey
        return tuple((keys(name), getattr(self, name)) for name in names), self.contiguous

    @classmethod
    def tree_unflatten(cls, static: Any, children: Any) -> TokenContext:
        """Returns the context of `tree_flatten_with_keys`; JAX may put any object in it."""
        result = object.__new__(cls)
        values = zip(("positions_BS", "segment_ids_BS"), children, strict=True)
        for name, value in (*values, ("contiguous", static)):
            object.__setattr__(result, name, value)
        return result
