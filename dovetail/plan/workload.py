"""What a step asks of any machine: traced from the experiment, before a mesh or a compiler.

The model is traced for a number of sequences that divides nothing else, so that what grows with the
batch can be told from what does not, by size alone. What is counted is for one sequence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax

from dovetail.config import ConfigError
from dovetail.hardware import precision_of
from dovetail.kernels import (
    KernelCounter,
    SlowKernelError,
    choices,
    forget_choices,
    target_platform,
    watch_kernels,
)
from dovetail.module import functional, parameter_specs
from dovetail.parallel import AxisRules
from dovetail.plan.slow_kernels import noting_slow_kernels
from dovetail.runtime import matmul_flops_of
from dovetail.targets import ExperimentSize, weigh

if TYPE_CHECKING:
    from dovetail.trainer import Program, Trainer

# A prime that is no size of any model, so it divides no array that has nothing to do with it.
_SEQUENCES = 10_007


@dataclass(frozen=True)
class Kept:
    """An array that the forward pass keeps for the backward pass.

    Attributes:
        bytes: for one sequence.
        is_shared: whether devices that share a layer hold a part each; the stream is whole on all.
    """

    bytes: float
    is_shared: bool


@dataclass(frozen=True)
class Workload:
    """What an experiment computes and keeps.

    Attributes:
        parameters: the spec of every parameter, by path.
        state_bytes: of parameters, optimizer and averages in all, before anything is split.
        size: the sizes that rules decide by.
        model_flops: the useful work of a step, which MFU is measured by.
        matmul_flops: of XLA's products, forwards, backwards and again, for one sequence.
        kernel_flops: the same of hand-written kernels.
        unknown_kernels: the names of those that nobody counts.
        has_open_loops: whether products stand in loops whose length depends on data. Their work is
            then taken to be that of the plain mathematics.
        kept: what waits for the backward pass.
        precision: of the products.
        kernels: what ops choose for the platform, on one device.
        slow: what was said of slow ones.
        rules: which mesh axes split which logical axes.
    """

    parameters: Mapping[str, Any]
    state_bytes: int
    size: ExperimentSize
    model_flops: int
    matmul_flops: float
    kernel_flops: float
    unknown_kernels: tuple[str, ...]
    has_open_loops: bool
    kept: tuple[Kept, ...]
    precision: str
    kernels: tuple[str, ...]
    slow: tuple[str, ...]
    rules: AxisRules

    @property
    def tokens(self) -> int:
        """Tokens a step."""
        return self.size.batch_size * self.size.sequence_length

    @property
    def number_bytes(self) -> int:
        """The size of a number in a product."""
        return self.size.number_bytes


def workload(config: Trainer.Config, platform: str) -> Workload:
    """Traces an experiment for a platform, whose kernels it takes; no array is made."""
    trainer = config.build()
    program = trainer.program_on(trainer.mesh.abstract(_devices_of(trainer.mesh)))
    forget_choices()
    with target_platform(platform), watch_kernels() as counter, noting_slow_kernels() as slow:
        forward, backward = _with_its_kernels(program)
    kernels_chosen = tuple(choices())
    counted = [_kernels(jaxpr, counter) for jaxpr in (forward, backward)]
    kernels = [each for found in counted for each in found]
    state, size, useful = program.state_shapes, weigh(config), program.step_flops()
    multiplied = sum(map(matmul_flops_of, (forward.jaxpr, backward.jaxpr))) / _SEQUENCES
    in_kernels = sum(flops or 0.0 for _, flops in kernels) / _SEQUENCES
    has_open_loops = any(_open_loops(jaxpr) for jaxpr in (forward, backward))
    if has_open_loops:
        multiplied = max(multiplied, useful / size.batch_size - in_kernels)
    return Workload(
        parameters=parameter_specs(trainer.model),
        state_bytes=sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)),
        size=size,
        model_flops=useful,
        matmul_flops=multiplied,
        kernel_flops=in_kernels,
        unknown_kernels=tuple({name: None for name, flops in kernels if flops is None}),
        has_open_loops=has_open_loops,
        kept=tuple(_kept(backward, trainer.model)),
        precision=precision_of(program.precision()),
        kernels=kernels_chosen,
        slow=tuple(slow),
        rules=trainer.rules,
    )


def _devices_of(mesh: Any) -> int:
    """Returns a number of devices that a layout fits; which, makes no difference here."""
    return math.prod(size for size in mesh.sizes.values() if size > 0)


def _with_its_kernels(program: Program) -> tuple[Any, Any]:
    """Traces with the run's settings of kernels, as far as they make sense without a mesh."""
    try:
        with program.kernels():
            return _traced(program)
    except SlowKernelError:
        raise
    except ConfigError:  # what is preferred may be for several devices: a ring, say
        return _traced(program)


def _traced(program: Program) -> tuple[Any, Any]:
    """Traces the forward pass, and the backward pass with what the first kept for it."""
    batch = jax.tree.map(_many, program.batch_spec)
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
    """Drops what nothing needs, as a compiler does: a kernel again whose result was kept."""
    from jax.interpreters.partial_eval import dce_jaxpr

    jaxpr, _ = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    return closed.replace(jaxpr=jaxpr)


def _many(leaf: Any) -> Any:
    sizes = zip(leaf.axes, leaf.shape, strict=True)
    shape = tuple(_SEQUENCES if axis == "batch" else size for axis, size in sizes)
    return jax.ShapeDtypeStruct(shape, leaf.struct().dtype)


def _kept(backward: Any, model: Any) -> Iterator[Kept]:
    """Yields what the backward pass is given that grows with the batch."""
    width = max(_widths(model), default=0)
    for array in backward.in_avals:
        if array.size and array.size % _SEQUENCES == 0:
            size = array.size * array.dtype.itemsize / _SEQUENCES
            yield Kept(size, array.shape[-1] != width)


def _widths(model: Any) -> Iterator[int]:
    for spec in parameter_specs(model).values():
        yield from (n for axis, n in zip(spec.axes, spec.shape, strict=True) if axis == "embed")


def _kernels(closed: Any, counter: KernelCounter) -> list[tuple[str, float | None]]:
    """Returns every kernel of a jaxpr with its operations, as often as it runs."""
    found: list[tuple[str, float | None]] = []

    def look(equation: Any, times: int, inside: str) -> None:
        if equation.primitive.name == "pallas_call":
            name = equation.params.get("name") or inside  # as in the compiled program
            flops = counter.flops(name, [each.aval.shape for each in equation.invars])
            found.append((name, None if flops is None else times * flops))

    walk(closed.jaxpr, look)
    return found


def _open_loops(closed: Any) -> bool:
    """Says whether a jaxpr multiplies in loops whose length depends on data."""
    found: list[bool] = []

    def look(equation: Any, times: int, inside: str) -> None:
        if equation.primitive.name == "while":
            found.append(matmul_flops_of(equation.params["body_jaxpr"].jaxpr) > 0)

    walk(closed.jaxpr, look)
    return any(found)


def walk(
    jaxpr: Any, look: Callable[[Any, int, str], None], times: int = 1, inside: str = ""
) -> None:
    """Shows every operation of a jaxpr to a function, with how often it runs, and in which jit."""
    from jax.extend.core import ClosedJaxpr, Jaxpr  # slow to import

    for equation in jaxpr.eqns:
        look(equation, times, inside)
        if equation.primitive.name == "pallas_call":
            continue  # what is inside is the kernel's own matter
        repeats = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        named = str(equation.params.get("name") or inside)
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else [value]:
                if isinstance(inner, ClosedJaxpr):
                    walk(inner.jaxpr, look, times * repeats, named)
                elif isinstance(inner, Jaxpr):
                    walk(inner, look, times * repeats, named)
