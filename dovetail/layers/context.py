"""The context of a layer's call: what is known about the tokens, beside their activations.

A position axes, beside the letters of all layers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.config import ConfigError
from dovetail.module import TokenBatch, current_path


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True)
class TokenContext:
    """Positions and segment ids of the tokens, and what a model or a layer provides by name.

    It is a pytree: scans, remat, pipeline stages and decoding carry it unchanged.

    A token with segment id 0 is padding: it is neither attended to nor cached. A layer may hide
    tokens from its children in this way (`hide`).

    A model provides named inputs that only some layers ask for: the token ids (`"tokens"`, by
    `CausalLM`), an encoder's output, a modality mask. A layer provides them to its children, such
    as the keys and values of an earlier layer. An input that no layer asks for costs nothing.

    Attributes:
        positions_BS: the position of each token within its segment: masks and caches go by it.
        segment_ids_BS: the segment id of each token.
        inputs: any pytrees, by name; see `get` and `provide`.
        axis_positions_BSA: the positions on several axes, which position encodings may use; see
            `positions_on_axes`. None if there is one axis.
        contiguous: promises that padding only precedes or follows the tokens of a sequence, in all
            layers and all calls that share a cache. A cache then need not store which of its slots
            are written. Only `promise_contiguous` sets it. A change of the segment ids withdraws
            it, by `dataclasses.replace` too.
    """

    positions_BS: jax.Array
    segment_ids_BS: jax.Array
    inputs: Mapping[str, Any] = field(default_factory=dict)
    axis_positions_BSA: jax.Array | None = None
    contiguous: bool = field(default=False, init=False)

    @classmethod
    def of(cls, batch: TokenBatch) -> TokenContext:
        """Returns the context of a training batch, whose padding never interrupts a document."""
        context = cls(batch.positions, batch.segment_ids, axis_positions_BSA=batch.axis_positions)
        return context.promise_contiguous()

    def positions_on_axes(self, num_axes: int) -> jax.Array:
        """Returns the position of each token on each of several axes [B, S, A].

        Where there is one axis, as in a batch of text, all axes have its position.

        Raises:
            ConfigError: if there are several axes, but not this many.
        """
        found_BSA = self.axis_positions_BSA
        if found_BSA is None:
            shape = (*self.positions_BS.shape, num_axes)
            return jnp.broadcast_to(self.positions_BS[..., None], shape)
        if found_BSA.shape[-1] != num_axes:
            raise ConfigError(
                f"{current_path() or 'The model'}: this layer encodes positions on {num_axes} "
                f"axes, but the tokens have positions on {found_BSA.shape[-1]}: `axis_positions` "
                f"of the batch or of the prompts has the shape {found_BSA.shape}."
            )
        return found_BSA

    def get(self, name: str) -> Any:
        """Returns a named input.

        Raises:
            ConfigError: if nobody provides it.
        """
        if name not in self.inputs:
            names = ", ".join(sorted(self.inputs)) or "none"
            raise ConfigError(
                f"{current_path() or 'The model'}: this layer asks for the input {name!r}, which "
                f"nobody provides. The inputs here: {names}. Provide it in the model or in a layer "
                f"around this one: context.provide({name!r}, value)."
            )
        return self.inputs[name]

    def provide(self, name: str, value: Any) -> TokenContext:
        """Returns a context with one more named input, or another value of it."""
        return self._with(inputs={**self.inputs, name: value})

    def promise_contiguous(self) -> TokenContext:
        """Returns the context with the promise that no token of a sequence is hidden."""
        return self._with(contiguous=True)

    def hide(self, hidden_BS: jax.Array) -> TokenContext:
        """Returns a context in which some tokens have segment id 0, as for a layer they skip."""
        return dataclasses.replace(
            self, segment_ids_BS=jnp.where(hidden_BS, 0, self.segment_ids_BS)
        )

    def _with(self, **changes: Any) -> TokenContext:
        """Returns a copy with changed attributes, `contiguous` included."""
        result = object.__new__(type(self))  # JAX may hold any object in a pytree: no checks
        for name, value in (vars(self) | changes).items():
            object.__setattr__(result, name, value)
        return result

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        """Returns the arrays (None has no leaves) and inputs with names, and the static part."""
        attribute = jax.tree_util.GetAttrKey
        arrays = [(attribute(name), getattr(self, name)) for name in _ARRAYS]
        names = tuple(sorted(self.inputs))
        return (*arrays, *((attribute(name), self.inputs[name]) for name in names)), (
            names,
            self.contiguous,
        )

    @classmethod
    def tree_unflatten(cls, static: Any, children: Any) -> TokenContext:
        """Returns the context of `tree_flatten_with_keys`."""
        names, contiguous = static
        arrays = dict(zip(_ARRAYS, children, strict=False))
        inputs = dict(zip(names, children[len(_ARRAYS) :], strict=True))
        return object.__new__(cls)._with(**arrays, inputs=inputs, contiguous=contiguous)


_ARRAYS = ("positions_BS", "segment_ids_BS", "axis_positions_BSA")
