"""shard_map() for modules: parameters and variables enter as shards, side outputs are all-reduced.

A `StateSharding` defines how arrays enter: their partition specs, and what the body all-gathers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
from jax.sharding import PartitionSpec

from dovetail.module.context import Arrays, Frame, require_frame
from dovetail.module.effects import apply_effects, run_in_scope, state_below
from dovetail.module.module import Module
from dovetail.module.specs import Axes, Spec, in_dtype


class StateSharding(Protocol):
    """How parameters and variables enter a shard_map, by their logical axes."""

    def spec(self, axes: Axes, shape: tuple[int, ...]) -> PartitionSpec:
        """Returns the partition spec of an array; it is replicated over axes that are not named."""
        ...

    def gather(self, shard: jax.Array, axes: Axes, spec: PartitionSpec) -> jax.Array:
        """Returns what the body reads, given its shard in the dtype that it is read in."""
        ...


class Replicated:
    """Every array is replicated on every device."""

    def spec(self, axes: Axes, shape: tuple[int, ...]) -> PartitionSpec:
        """Returns an empty partition spec."""
        return PartitionSpec()

    def gather(self, shard: jax.Array, axes: Axes, spec: PartitionSpec) -> jax.Array:
        """Returns the array unchanged."""
        return shard


def shard_map(
    body: Callable[..., Any],
    *,
    mesh: Any,
    in_specs: Any,
    out_specs: Any,
    axis_names: Iterable[str] | None = None,
    layer: Module | None = None,
    state_sharding: StateSharding | None = None,
    around: Callable[[Any], Any] | None = None,
) -> Callable[..., Any]:
    """Runs `body` on each device's shards. Losses and summaries merge over the manual mesh axes.

    The random key is the same on every device. Outputs and state writes have no reduction, so they
    are errors: return them from the body instead.

    Args:
        body: the function of one device's shards.
        mesh: as for jax.shard_map, like the next three.
        in_specs: the partition specs of the arguments.
        out_specs: the partition specs of the result.
        axis_names: the manual mesh axes; all by default.
        layer: the child whose parameters and variables the body reads; by default, the calling
            module.
        state_sharding: how they enter; replicated by default.
        around: wraps the pure body, as for scan().
    """
    axes = tuple(axis_names if axis_names is not None else mesh.axis_names)

    def call(*args: Any) -> Any:
        frame = require_frame("shard_map")
        owner = layer or frame.module
        params, variables = state_below(frame, owner)
        state = _ShardedState.of(
            frame, owner, {**params, **variables}, state_sharding or Replicated()
        )

        def local(params: Arrays, variables: Arrays, key: Any, *inner_args: Any) -> Any:
            inner = frame.scope.inner(
                parameters={**frame.scope.parameters, **state.gather(params)},
                variables={**frame.scope.variables, **state.gather(variables)},
                key=key,
            )
            result, effects = run_in_scope(frame, inner, body, *inner_args)
            return result, effects.all_reduce(axes)

        specs = [{path: state.specs[path] for path in arrays} for arrays in (params, variables)]
        own = (*specs, PartitionSpec())
        given = in_specs if type(in_specs) is tuple else (in_specs,) * len(args)
        mapped = jax.shard_map(
            around(local) if around is not None else local,
            mesh=mesh,
            in_specs=(*own, *given),
            out_specs=(out_specs, PartitionSpec()),
            axis_names=set(axes),
            check_vma=False,
        )
        result, effects = mapped(params, variables, frame.scope.key, *args)
        apply_effects(frame, effects)
        return result

    return call


@dataclass(frozen=True)
class _ShardedState:
    """The parameters and variables that enter one shard_map.

    Attributes:
        sharding: how they enter.
        axes: the logical axes of each by path, without the axes that an outer scan has sliced.
        specs: the partition spec of each.
        dtypes: the dtype that each is read in; None means its own.
    """

    sharding: StateSharding
    axes: dict[str, Axes]
    specs: dict[str, PartitionSpec]
    dtypes: dict[str, str | None]

    @classmethod
    def of(
        cls, frame: Frame, layer: Module, arrays: Arrays, sharding: StateSharding
    ) -> _ShardedState:
        tree = frame.scope.tree
        names = {path: spec.axes for path, spec in tree.specs(Spec, layer).items()}
        axes = {path: names[path][-value.ndim :][: value.ndim] for path, value in arrays.items()}
        specs = {path: sharding.spec(axes[path], value.shape) for path, value in arrays.items()}
        return cls(sharding, axes, specs, tree.read_dtypes(layer))

    def gather(self, arrays: Arrays) -> Arrays:
        # Cast first: a body that computes in bfloat16 then gathers half as many bytes.
        return {
            path: self.sharding.gather(
                in_dtype(shard, self.dtypes[path]), self.axes[path], self.specs[path]
            )
            for path, shard in arrays.items()
        }
