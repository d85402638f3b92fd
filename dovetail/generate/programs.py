"""The compiled prefill and decode programs.

Both run the model's `logits`. The decode program is a loop on the device that decodes a chunk of
tokens per call. The KV cache is donated, so it is updated in place. The number of tokens per call
is an argument, so chunks of every length share one program.

B rows, P prompt, C chunk, N stop tokens, A position axes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.generate.samplers import Sampler
from dovetail.layers import TokenContext
from dovetail.module import Module, functional
from dovetail.parallel import AxisRules, Placement, use_placement

Arrays = Mapping[str, Any]

NO_TOKEN = -1
MAX_CHUNK = 32


class ModelState(NamedTuple):
    """Parameters and variables of the model; constant while decoding."""

    parameters: Arrays
    variables: Arrays


class DecodeState(NamedTuple):
    """The carry of the decode loop.

    Attributes:
        cache: KV caches and recurrent states.
        token_B: the newest token of each row; the model has not read it yet.
        position_B: its position.
        remaining_B: how many more tokens may follow; 0 if a row is finished.
        keys_B: the random key of each row.
        axis_offsets_BA: what to add to the position of a new token for its position on each of
            several axes; None if there is one axis.
    """

    cache: dict[str, Any]
    token_B: jax.Array
    position_B: jax.Array
    remaining_B: jax.Array
    keys_B: jax.Array
    axis_offsets_BA: jax.Array | None = None


class DecodePrograms:
    """The programs of one model with one sampler, compiled once per shape."""

    def __init__(self, model: Module, sampler: Sampler, placement: Placement | None) -> None:
        self._model, self._sampler = model, sampler
        self._placement = None if placement is None else decoding_placement(placement)
        self._prefill = jax.jit(self._prefill_prompts)
        self._decoders: dict[Any, Any] = {}

    def prefill(
        self,
        state: ModelState,
        key: jax.Array,
        tokens_BP: Any,
        lengths_B: Any,
        new_B: Any,
        stops_N: Any,
        inputs: Arrays | None = None,
        axis_positions_BPA: Any = None,
    ) -> tuple[DecodeState, jax.Array]:
        """Runs right-padded prompts; returns the decode state and the first new tokens [B, 1].

        `inputs` are named inputs of the layers' context; decode steps do not get them. With
        `axis_positions_BPA`, the tokens of the prompts have positions on several axes. A new token
        follows the largest of them, and is at the same position on all axes.
        """
        tokens_BP, lengths_B, new_B = (self._put(array) for array in (tokens_BP, lengths_B, new_B))
        inputs, axis_positions_BPA = jax.tree.map(
            self._put, (dict(inputs or {}), axis_positions_BPA)
        )
        return self._prefill(
            state, key, tokens_BP, lengths_B, new_B, stops_N, inputs, axis_positions_BPA
        )

    def decode(
        self, state: ModelState, decode_state: DecodeState, stops_N: Any, count: int
    ) -> tuple[DecodeState, jax.Array]:
        """Decodes up to `count` tokens per row; returns them [B, C], padded with NO_TOKEN.

        `decode_state` is donated: use the returned one.
        """
        return self.decoder(decode_state)(state, decode_state, stops_N, count)

    def decoder(self, decode_state: DecodeState) -> Any:
        """Returns the jitted decode program for the shardings of a decode state."""
        if self._placement is None:
            shardings: Any = None
        else:  # a donated buffer is only reused if input and output have the same sharding
            shardings = (
                jax.tree.map(lambda array: array.sharding, decode_state),
                self._placement.sharding(()),
            )
        key = None if shardings is None else tuple(jax.tree.leaves(shardings))
        if key not in self._decoders:
            self._decoders[key] = jax.jit(
                self._decode_chunk, donate_argnames=("decode_state",), out_shardings=shardings
            )
        return self._decoders[key]

    def _prefill_prompts(
        self,
        state: ModelState,
        key: jax.Array,
        tokens_BP: jax.Array,
        lengths_B: jax.Array,
        remaining_B: jax.Array,
        stops_N: jax.Array,
        inputs: Arrays | None = None,
        axis_positions_BPA: jax.Array | None = None,
    ) -> tuple[DecodeState, jax.Array]:
        index_BP = jnp.broadcast_to(jnp.arange(tokens_BP.shape[1]), tokens_BP.shape)
        segment_ids_BP = (index_BP < lengths_B[:, None]).astype(jnp.int32)
        context = TokenContext(index_BP, segment_ids_BP, inputs or {}, axis_positions_BPA)
        context = context.promise_contiguous()
        last_B = jnp.maximum(lengths_B - 1, 0)
        logits_BV, cache = self._logits(state, {}, tokens_BP, context, last_B)
        keys_B = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(tokens_BP.shape[0]))
        offsets_BA = _axis_offsets(axis_positions_BPA, segment_ids_BP, lengths_B)
        decode_state = DecodeState(cache, lengths_B, last_B, remaining_B, keys_B, offsets_BA)
        decode_state, token_B = self._sample(decode_state, logits_BV, stops_N)
        return decode_state, self._replicated(token_B[:, None])

    def _decode_chunk(
        self, state: ModelState, decode_state: DecodeState, stops_N: jax.Array, count: jax.Array
    ) -> tuple[DecodeState, jax.Array]:
        def unfinished(carry: tuple[jax.Array, DecodeState, jax.Array]) -> jax.Array:
            index, decode_state, _ = carry
            return (index < count) & jnp.any(decode_state.remaining_B > 0)

        def step(
            carry: tuple[jax.Array, DecodeState, jax.Array],
        ) -> tuple[jax.Array, DecodeState, jax.Array]:
            index, decode_state, tokens_BC = carry
            decode_state, token_B = self._decode_step(state, decode_state, stops_N)
            column = functools.partial(jax.lax.dynamic_update_index_in_dim, axis=1)
            return index + 1, decode_state, column(tokens_BC, token_B, index)

        tokens_BC = jnp.full((decode_state.token_B.shape[0], MAX_CHUNK), NO_TOKEN, jnp.int32)
        start = (jnp.zeros((), jnp.int32), decode_state, tokens_BC)
        _, decode_state, tokens_BC = jax.lax.while_loop(unfinished, step, start)
        return decode_state, tokens_BC

    def _decode_step(
        self, state: ModelState, old: DecodeState, stops_N: jax.Array
    ) -> tuple[DecodeState, jax.Array]:
        """Runs the newest token of each row and samples the next one."""
        # A finished row counts as padding (segment id 0), so that it writes nothing to its cache.
        segment_ids_B = (old.remaining_B > 0).astype(jnp.int32)
        position_B1, axis_positions_B1A = old.position_B[:, None], None
        if old.axis_offsets_BA is not None:
            axis_positions_B1A = position_B1[..., None] + old.axis_offsets_BA[:, None]
        context = TokenContext(position_B1, segment_ids_B[:, None], {}, axis_positions_B1A)
        context = context.promise_contiguous()
        last_B = jnp.zeros_like(old.position_B)
        logits_BV, cache = self._logits(state, old.cache, old.token_B[:, None], context, last_B)
        return self._sample(old._replace(cache=cache), logits_BV, stops_N)

    def _sample(
        self, old: DecodeState, logits_BV: jax.Array, stops_N: jax.Array
    ) -> tuple[DecodeState, jax.Array]:
        """Samples the next token; a row's sample depends only on its key and its position."""
        position_B = old.position_B + 1
        keys_B = jax.vmap(jax.random.fold_in)(old.keys_B, position_B)
        token_B = self._sampler(logits_BV, keys_B)
        is_stop_B = jnp.any(token_B[:, None] == stops_N, axis=1)
        remaining_B = jnp.where(is_stop_B, 0, jnp.maximum(old.remaining_B - 1, 0))
        output_B = jnp.where(old.remaining_B > 0, token_B, NO_TOKEN)
        new = old._replace(token_B=token_B, position_B=position_B, remaining_B=remaining_B)
        return new, output_B

    def _logits(
        self,
        state: ModelState,
        cache: Arrays,
        tokens_BS: jax.Array,
        context: TokenContext,
        last_B: jax.Array,
    ) -> tuple[jax.Array, dict[str, Any]]:
        with self._placed():
            logits_BV, outputs = functional(
                self._model,
                state.parameters,
                (tokens_BS, context, last_B),
                variables=state.variables,
                cache=cache,
                losses="discard",
                method="logits",
            )
        return logits_BV, dict(outputs.cache or {})

    def _placed(self) -> AbstractContextManager[None]:
        return nullcontext() if self._placement is None else use_placement(self._placement)

    def _put(self, array: Any) -> jax.Array:
        if self._placement is None:
            return jnp.asarray(array)
        axes = ("batch", *(None,) * (array.ndim - 1))
        return jax.device_put(array, self._placement.sharding(axes, array.shape, "prompts"))

    def _replicated(self, array: jax.Array) -> jax.Array:
        """Replicates an array, so that every process can read it."""
        if self._placement is None:
            return array
        return jax.lax.with_sharding_constraint(array, self._placement.sharding(()))


def _axis_offsets(
    axis_positions_BPA: jax.Array | None, segment_ids_BP: jax.Array, lengths_B: jax.Array
) -> jax.Array | None:
    """Returns the offsets with which new tokens follow the largest position of their prompt."""
    if axis_positions_BPA is None:
        return None
    largest_BP = jnp.where(segment_ids_BP > 0, axis_positions_BPA.max(axis=2), -1)
    offset_B = largest_BP.max(axis=1) + 1 - lengths_B
    return jnp.repeat(offset_B[:, None], axis_positions_BPA.shape[2], axis=1)


def decoding_placement(placement: Placement) -> Placement:
    """Returns the placement with an unsharded sequence: a decode step has one token."""
    rules = dict(placement.rules.rules) | {"sequence": (), "residual_sequence": ()}
    return Placement(placement.mesh, AxisRules.Config(rules=rules).build())
