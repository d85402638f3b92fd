"""The turns of one device: a part forward for one micro-batch, or backward for one."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.learner.pipeline.layout import Layout
from dovetail.learner.pipeline.stage import PIPELINE, Side, Stage, combined, reduced
from dovetail.learner.state import Arrays
from dovetail.parallel import Rounds


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Carry:
    """What a device holds from tick to tick.

    Attributes:
        x: what arrived from the stage before.
        pull: the gradient that arrived from the stage after.
        variables: by path, [rounds, layers, ...].
        inputs: what its parts read, for the micro-batches that have yet to come back.
        kept: the variables that they read then.
        own: gradients of its own parameters so far.
        shared: gradients of the parameters that all stages have.
    """

    x: Any
    pull: Any
    variables: Arrays
    inputs: Any
    kept: Arrays
    own: Arrays
    shared: Arrays


@dataclass(frozen=True)
class Work:
    """What a device has to do its turns with.

    Attributes:
        stage: the computation.
        layout: how the model is split.
        rank: which stage this device is.
        micro_K: all micro-batches.
        own: the parameters of its parts, [rounds, layers, ...].
        shared: the parameters that all stages have.
        trained: the paths of those that are trained.
    """

    stage: Stage
    layout: Layout
    rank: jax.Array
    micro_K: Any
    own: Arrays
    shared: Arrays
    trained: Collection[str]

    @property
    def schedule(self) -> Rounds:
        """Whose turn it is."""
        return self.layout.schedule

    def learns(self, params: Arrays) -> Arrays:
        """Returns those that are trained."""
        return {path: value for path, value in params.items() if path in self.trained}

    def objective(
        self, own: Arrays, shared: Arrays, variables: Arrays, x: Any, part: Any, index: Any
    ) -> Any:
        """Runs a part for a micro-batch, with these trained parameters."""
        # Said of a parameter, it holds for its gradient, too.
        own, shared = self.layout.placed(own), self.layout.placed(shared)
        params = {**_at(self.own, part), **own, **self.shared, **shared}
        whole = part * self.schedule.stages + self.rank
        return self.stage.objective(params, variables, x, self._micro(index), index, whole)

    def forward(self, carry: Carry, tick: Any) -> tuple[Carry, None]:
        """Runs a part forward, and hands the result to the next stage."""
        part, index, is_due = self.schedule.forward(tick, self.rank)
        index = self._inside(index)
        place = (part, index % self.schedule.held)
        variables = _at(carry.variables, part)
        params = {**_at(self.own, part), **self.shared}
        whole = part * self.schedule.stages + self.rank
        y, after, _ = self.stage.forward(
            params, variables, carry.x, self._micro(index), index, whole
        )
        return replace(
            carry,
            x=self.sent(y, ahead=True),
            variables=put(carry.variables, after, (part,), is_due),
            inputs=_put(carry.inputs, carry.x, place, is_due),
            kept=put(carry.kept, variables, place, is_due),
        ), None

    def backward(self, carry: Carry, tick: Any) -> tuple[Carry, Side]:
        """Runs a part backward, and hands the gradient of its input to the stage before."""
        part, index, is_due = self.schedule.backward(tick, self.rank)
        index = self._inside(index)
        place = (part, index % self.schedule.held)
        x, variables = carry.inputs[place], {path: v[place] for path, v in carry.kept.items()}

        def run(own: Arrays, shared: Arrays, x: Any) -> Any:
            return self.objective(own, shared, variables, x, part, index)

        own, shared = self.learns(_at(self.own, part)), self.learns(self.shared)
        (y, _), pull_back, (side, _) = jax.vjp(run, own, shared, x, has_aux=True)
        is_last = part * self.schedule.stages + self.rank == self.stage.parts - 1
        pull = jnp.where(is_last, jnp.zeros_like(y), carry.pull)
        own, shared, pull = pull_back((pull, jnp.ones((), jnp.float32)))
        return replace(
            carry,
            pull=self.sent(pull, ahead=False),
            own=_add(carry.own, own, (part,), is_due),
            shared=_add(carry.shared, shared, (), is_due),
        ), side

    def sent(self, x: jax.Array, *, ahead: bool) -> jax.Array:
        """Hands an array to the next stage, or to the one before; the ends are neighbours."""
        count = self.schedule.stages
        pairs = [(here, (here + (1 if ahead else -1)) % count) for here in range(count)]
        return jax.lax.ppermute(x, PIPELINE, pairs)

    def empty(self) -> jax.Array:
        """Returns zeros of the shape and type that go from stage to stage."""
        params = {**_at(self.own, 0), **self.shared}
        shape = jax.eval_shape(lambda: self.stage.begin(params, self._micro(0)))
        return jnp.zeros(shape.shape, shape.dtype)

    def told(self, sides: Side, start: Any, *, backward: bool) -> tuple[Any, Any]:
        """Returns losses and summaries of all stages, given what each tick since one told."""
        schedule = self.schedule
        sizes = (-1, schedule.rounds, schedule.stages)

        def due(leaf: jax.Array) -> jax.Array:
            return jax.lax.dynamic_slice_in_dim(leaf, start, schedule.turns)

        def last_rounds(leaf: jax.Array) -> jax.Array:
            if schedule.rounds == 1:
                return leaf
            rounds = leaf.reshape(*sizes, *leaf.shape[1:])
            rounds = rounds[:, 0 if backward else -1]
            return rounds.reshape(-1, *leaf.shape[1:])

        side = reduced(jax.tree.map(due, sides), last_rounds)
        return combined(side, self.rank == schedule.stages - 1)

    def _micro(self, index: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf[index], self.micro_K)

    def _inside(self, index: Any) -> Any:
        return jnp.clip(index, 0, self.schedule.microbatches - 1)


def put(arrays: Arrays, new: Arrays, place: tuple[Any, ...], is_due: Any) -> Arrays:
    """Writes values at a place of each array, if they are due."""
    return {path: _put(value, new[path], place, is_due) for path, value in arrays.items()}


def _at(arrays: Arrays, part: Any) -> Arrays:
    return {path: value[part] for path, value in arrays.items()}


def _put(array: jax.Array, value: jax.Array, place: tuple[Any, ...], is_due: Any) -> jax.Array:
    return array.at[place].set(jnp.where(is_due, value.astype(array.dtype), array[place]))


def _add(total: Arrays, more: Arrays, place: tuple[Any, ...], is_due: Any) -> Arrays:
    def add(path: str, old: jax.Array) -> jax.Array:
        new = jnp.where(is_due, more[path].astype(old.dtype), 0)
        return old.at[place].add(new) if place else old + new

    return {path: add(path, old) for path, old in total.items()}


def zeros(arrays: Arrays, lead: tuple[int, ...] = (), drop: int = 0, dtype: Any = None) -> Arrays:
    """Returns zeros in the shapes of arrays, with axes put before and taken off."""
    return {
        path: jnp.zeros((*lead, *value.shape[drop:]), dtype or value.dtype)
        for path, value in arrays.items()
    }


Run = Callable[[Work, Arrays], tuple[Any, ...]]
