"""The workload of a step on any machine, traced without a mesh or a compiler.

The model is traced with a batch size that divides no other size. So an array whose size it divides
grows with the batch. Counts are for one example.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax

from dovetail.config import ConfigError
from dovetail.hardware import precision_of
from dovetail.kernels import (
    KernelCounter,
    SlowKernelError,
    SlowKernelWarning,
    choices,
    clear_choices,
    target_platform,
    watch_kernels,
)
from dovetail.module import batch_items, functional, parameter_specs, walk_jaxpr
from dovetail.parallel import AxisRules
from dovetail.runtime import matmul_flops_of
from dovetail.targets import ExperimentSize, experiment_size

if TYPE_CHECKING:
    from dovetail.trainer import Program, Trainer

# A prime that is no dimension of any model.
_TRACED_BATCH = 10_007


@dataclass(frozen=True)
class SavedActivation:
    """An array that the forward pass saves for the backward pass.

    Attributes:
        bytes: for one example.
        is_model_sharded: whether tensor parallelism shards it; the residual stream is replicated.
    """

    bytes: float
    is_model_sharded: bool


@dataclass(frozen=True)
class Workload:
    """The FLOPs, state and saved activations of an experiment.

    Attributes:
        parameters: the spec of every parameter, by path.
        state_bytes: unsharded bytes of parameters, optimizer and averages.
        size: the sizes of the experiment.
        items: how many items of what kind a step has, the main kind first: {"tokens": 4194304}.
        model_flops: the FLOPs of a step that count for MFU.
        matmul_flops: FLOPs of XLA's matmuls for one example: forward, recomputed and backward.
        kernel_flops: the same of Pallas kernels.
        unknown_kernels: kernels without a FLOP count.
        has_dynamic_loops: whether loops whose length depends on data contain matmuls. They are then
            counted as if nothing were skipped.
        saved_activations: what is saved for the backward pass.
        precision: the precision of most matmuls.
        kernels: the implementation that each op chooses for the platform, on one device.
        slow: warnings about slow kernels.
        rules: the axis rules.
    """

    parameters: Mapping[str, Any]
    state_bytes: int
    size: ExperimentSize
    items: Mapping[str, int]
    model_flops: int
    matmul_flops: float
    kernel_flops: float
    unknown_kernels: tuple[str, ...]
    has_dynamic_loops: bool
    saved_activations: tuple[SavedActivation, ...]
    precision: str
    kernels: tuple[str, ...]
    slow: tuple[str, ...]
    rules: AxisRules

    @property
    def num_positions(self) -> int:
        """Examples of a step times the length of their sequence."""
        return self.size.batch_size * self.size.sequence_length

    @property
    def bytes_per_element(self) -> int:
        """Bytes of an activation's element."""
        return self.size.bytes_per_element


def trace_workload(trainer: Trainer, platform: str) -> Workload:
    """Traces a built experiment with the kernels of a platform, without allocating arrays."""
    devices = math.prod(size for size in trainer.mesh.sizes.values() if size > 0)  # any will do
    program = trainer.program_on(trainer.mesh.abstract_mesh(devices))
    clear_choices()
    with target_platform(platform), watch_kernels() as counter, slow_kernel_warnings() as slow:
        forward, backward = _trace_with_kernel_settings(program)
    chosen = tuple(choices())
    counted = [_kernels(jaxpr, counter) for jaxpr in (forward, backward)]
    kernels = [each for found in counted for each in found]
    size = experiment_size(trainer.model, program.batch_spec)
    state, model_flops = program.state_shapes, program.step_flops()
    matmul_flops = sum(map(matmul_flops_of, (forward.jaxpr, backward.jaxpr))) / _TRACED_BATCH
    kernel_flops = sum(flops or 0.0 for _, flops in kernels) / _TRACED_BATCH
    has_dynamic_loops = any(_has_matmuls_in_while_loops(jaxpr) for jaxpr in (forward, backward))
    if has_dynamic_loops:
        matmul_flops = max(matmul_flops, model_flops / size.batch_size - kernel_flops)
    return Workload(
        parameters=parameter_specs(trainer.model),
        state_bytes=sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)),
        size=size,
        items=batch_items(program.batch_spec),
        model_flops=model_flops,
        matmul_flops=matmul_flops,
        kernel_flops=kernel_flops,
        unknown_kernels=tuple({name: None for name, flops in kernels if flops is None}),
        has_dynamic_loops=has_dynamic_loops,
        saved_activations=tuple(_saved_activations(backward, trainer.model)),
        precision=precision_of(program.precision()),
        kernels=chosen,
        slow=tuple(slow),
        rules=trainer.rules,
    )


def _trace_with_kernel_settings(program: Program) -> tuple[Any, Any]:
    """Traces with the run's kernel settings, or without if they need a mesh."""
    try:
        with program.kernels():
            return _trace(program)
    except SlowKernelError:
        raise
    except ConfigError:  # the preferred kernel may need several devices, as ring attention does
        return _trace(program)


def _trace(program: Program) -> tuple[Any, Any]:
    """Traces the forward pass, and the backward pass on its residuals."""
    batch = jax.tree.map(_with_traced_batch, program.batch_spec)
    state = program.state_shapes

    def forward(params: Any, variables: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            _, outputs = functional(
                program.model,
                params,
                batch,
                variables=variables,
                key=program.make_key(),
                training=True,
                losses="return",
            )
            return sum(loss.total for loss in outputs.losses.values())

        return jax.vjp(loss, params)

    jaxpr, (results, pull_back) = jax.make_jaxpr(forward, return_shape=True)(
        state.params, state.variables, batch
    )
    backward = jax.make_jaxpr(lambda pull_back, given: pull_back(given))(pull_back, results)
    return jaxpr, _without_dead_code(backward)


def _without_dead_code(closed: Any) -> Any:
    """Removes dead code as a compiler does, such as a recomputed kernel whose result was saved."""
    from jax.interpreters.partial_eval import dce_jaxpr

    jaxpr, _ = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    return closed.replace(jaxpr=jaxpr)


def _with_traced_batch(leaf: Any) -> Any:
    sizes = zip(leaf.axes, leaf.shape, strict=True)
    shape = tuple(_TRACED_BATCH if axis == "batch" else size for axis, size in sizes)
    return jax.ShapeDtypeStruct(shape, leaf.struct().dtype)


def _saved_activations(backward: Any, model: Any) -> Iterator[SavedActivation]:
    """Yields the inputs of the backward pass that grow with the batch."""
    width = max(_widths(model), default=0)
    for array in backward.in_avals:
        if array.size and array.size % _TRACED_BATCH == 0:
            size = array.size * array.dtype.itemsize / _TRACED_BATCH
            yield SavedActivation(size, array.shape[-1] != width)


def _widths(model: Any) -> Iterator[int]:
    for spec in parameter_specs(model).values():
        yield from (n for axis, n in zip(spec.axes, spec.shape, strict=True) if axis == "embed")


def _kernels(closed: Any, counter: KernelCounter) -> list[tuple[str, float | None]]:
    """Returns the name and the FLOPs of every Pallas kernel of a jaxpr; None if unknown."""
    found: list[tuple[str, float | None]] = []
    for equation, runs, scope in walk_jaxpr(closed.jaxpr):
        if equation.primitive.name == "pallas_call":
            name = equation.params.get("name") or scope  # as in the compiled program
            flops = counter.flops(name, [each.aval.shape for each in equation.invars])
            found.append((name, None if flops is None else runs * flops))
    return found


def _has_matmuls_in_while_loops(closed: Any) -> bool:
    return any(
        matmul_flops_of(equation.params["body_jaxpr"].jaxpr) > 0
        for equation, _, _ in walk_jaxpr(closed.jaxpr)
        if equation.primitive.name == "while"
    )


@contextmanager
def slow_kernel_warnings() -> Iterator[list[str]]:
    """Collects the warnings about slow kernels, each once; other warnings are passed on."""
    slow: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SlowKernelWarning)
        yield slow
    for each in caught:
        if not issubclass(each.category, SlowKernelWarning):
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
        elif str(each.message) not in slow:
            slow.append(str(each.message))
