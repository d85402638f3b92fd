"""The compiled programs: one reads the prompts, one decodes several tokens a call.

Both run the model's own `logits` and keep its cache between calls. The decode program is a loop on
the device over a cache that is donated to it, so it is updated in place, and Python is asked for
nothing while tokens are made. How many tokens a call makes is an argument, so long and short chunks
share a program.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.generate.samplers import Sampler
from dovetail.layers import Places
from dovetail.module import Module, functional
from dovetail.parallel import AxisRules, Placement, placed

Arrays = Mapping[str, Any]

NO_TOKEN = -1
LARGEST_CHUNK = 32


class State(NamedTuple):
    """What the model is made of: it stays the same while decoding."""

    parameters: Arrays
    variables: Arrays


class Rows(NamedTuple):
    """What decoding carries from token to token.

    Attributes:
        cache: the model's memories.
        token_B: the newest token of each row, which the model has not read yet.
        position_B: where it stands.
        remaining_B: how many more tokens may follow; 0 where a row is done.
        keys_B: the source of each row's randomness.
    """

    cache: dict[str, Any]
    token_B: jax.Array
    position_B: jax.Array
    remaining_B: jax.Array
    keys_B: jax.Array


class Programs:
    """The programs of one model with one sampler, each compiled once for every shape it meets."""

    def __init__(self, model: Module, sampler: Sampler, placement: Placement | None) -> None:
        """Compiles nothing yet."""
        self._model, self._sampler = model, sampler
        self._placement = None if placement is None else decoding_placement(placement)
        self._prefill = jax.jit(self._read_prompts)
        self._decoders: dict[Any, Any] = {}

    def prefill(
        self, state: State, key: jax.Array, tokens_BP: Any, lengths_B: Any, new_B: Any, stops_N: Any
    ) -> tuple[Rows, jax.Array]:
        """Reads prompts, padded on the right; returns the rows and their first tokens [B, 1]."""
        tokens_BP, lengths_B, new_B = (self._put(array) for array in (tokens_BP, lengths_B, new_B))
        return self._prefill(state, key, tokens_BP, lengths_B, new_B, stops_N)

    def decode(self, state: State, rows: Rows, stops_N: Any, count: int) -> tuple[Rows, jax.Array]:
        """Makes up to `count` further tokens a row; returns them [B, C], padded with NO_TOKEN.

        The rows that come in are donated: use the ones that come out.
        """
        return self.decoder(rows)(state, rows, stops_N, count)

    def decoder(self, rows: Rows) -> Any:
        """Returns the jitted decode program for rows that lie on devices as these do."""
        if self._placement is None:
            place: Any = None
        else:  # what comes out must lie as what went in, or the donated memory is of no use
            place = (jax.tree.map(lambda array: array.sharding, rows), self._placement.sharding(()))
        known = None if place is None else tuple(jax.tree.leaves(place))
        if known not in self._decoders:
            self._decoders[known] = jax.jit(
                self._decode_chunk, donate_argnames=("rows",), out_shardings=place
            )
        return self._decoders[known]

    def _read_prompts(
        self,
        state: State,
        key: jax.Array,
        tokens_BP: jax.Array,
        lengths_B: jax.Array,
        remaining_B: jax.Array,
        stops_N: jax.Array,
    ) -> tuple[Rows, jax.Array]:
        index_BP = jnp.broadcast_to(jnp.arange(tokens_BP.shape[1]), tokens_BP.shape)
        places = Places(index_BP, (index_BP < lengths_B[:, None]).astype(jnp.int32))
        last_B = jnp.maximum(lengths_B - 1, 0)
        logits_BV, cache = self._logits(state, {}, tokens_BP, places, last_B)
        keys_B = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(tokens_BP.shape[0]))
        rows = Rows(cache, lengths_B, last_B, remaining_B, keys_B)
        rows, token_B = self._choose(rows, logits_BV, stops_N)
        return rows, self._everywhere(token_B[:, None])

    def _decode_chunk(
        self, state: State, rows: Rows, stops_N: jax.Array, count: jax.Array
    ) -> tuple[Rows, jax.Array]:
        def unfinished(carry: tuple[jax.Array, Rows, jax.Array]) -> jax.Array:
            index, rows, _ = carry
            return (index < count) & jnp.any(rows.remaining_B > 0)

        def step(carry: tuple[jax.Array, Rows, jax.Array]) -> tuple[jax.Array, Rows, jax.Array]:
            index, rows, tokens_BC = carry
            rows, token_B = self._next(state, rows, stops_N)
            column = functools.partial(jax.lax.dynamic_update_index_in_dim, axis=1)
            return index + 1, rows, column(tokens_BC, token_B, index)

        tokens_BC = jnp.full((rows.token_B.shape[0], LARGEST_CHUNK), NO_TOKEN, jnp.int32)
        start = (jnp.zeros((), jnp.int32), rows, tokens_BC)
        _, rows, tokens_BC = jax.lax.while_loop(unfinished, step, start)
        return rows, tokens_BC

    def _next(self, state: State, rows: Rows, stops_N: jax.Array) -> tuple[Rows, jax.Array]:
        """Reads the newest token of each row and chooses the one after it."""
        # A row that is done counts as padding, so that it writes nothing into its memory.
        segments_B = (rows.remaining_B > 0).astype(jnp.int32)
        places = Places(rows.position_B[:, None], segments_B[:, None])
        last_B = jnp.zeros_like(rows.position_B)
        logits_BV, cache = self._logits(state, rows.cache, rows.token_B[:, None], places, last_B)
        return self._choose(rows._replace(cache=cache), logits_BV, stops_N)

    def _choose(
        self, rows: Rows, logits_BV: jax.Array, stops_N: jax.Array
    ) -> tuple[Rows, jax.Array]:
        """Samples the next token; a row's draw depends on its key and its position alone."""
        position_B = rows.position_B + 1
        keys_B = jax.vmap(jax.random.fold_in)(rows.keys_B, position_B)
        token_B = self._sampler(logits_BV, keys_B)
        is_stop_B = jnp.any(token_B[:, None] == stops_N, axis=1)
        remaining_B = jnp.where(is_stop_B, 0, jnp.maximum(rows.remaining_B - 1, 0))
        shown_B = jnp.where(rows.remaining_B > 0, token_B, NO_TOKEN)
        return Rows(rows.cache, token_B, position_B, remaining_B, rows.keys_B), shown_B

    def _logits(
        self, state: State, cache: Arrays, tokens_BS: jax.Array, places: Places, last_B: jax.Array
    ) -> tuple[jax.Array, dict[str, Any]]:
        with self._placed():
            logits_BV, outputs = functional(
                self._model,
                state.parameters,
                (tokens_BS, places, last_B),
                variables=state.variables,
                cache=cache,
                losses="discard",
                method="logits",
            )
        return logits_BV, dict(outputs.cache or {})

    def _placed(self) -> AbstractContextManager[None]:
        return nullcontext() if self._placement is None else placed(self._placement)

    def _put(self, array: Any) -> jax.Array:
        if self._placement is None:
            return jnp.asarray(array)
        axes = ("batch", *(None,) * (array.ndim - 1))
        return jax.device_put(array, self._placement.sharding(axes, array.shape, "prompts"))

    def _everywhere(self, array: jax.Array) -> jax.Array:
        """Lets every process read an array."""
        if self._placement is None:
            return array
        return jax.lax.with_sharding_constraint(array, self._placement.sharding(()))


def decoding_placement(placement: Placement) -> Placement:
    """Returns the placement without a split along the sequence: when decoding, it is one token."""
    rules = dict(placement.rules.rules) | {"sequence": (), "stream": ()}
    return Placement(placement.mesh, AxisRules.Config(rules=rules).build())
