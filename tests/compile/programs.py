"""Programs compiled for devices that are not attached, and what their HLO contains."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import pytest
from jax.sharding import Mesh

from dovetail.parallel import AxisRules, MeshLayout, Placement, use_placement
from dovetail.plan.collectives import KINDS
from dovetail.plan.collectives import collectives as read_collectives
from dovetail.plan.hlo import HloProgram
from dovetail.targets import gpu_topology, tpu_topology
from dovetail.utils import can_compile_for


def _skipped_without(platform: str, reason: str) -> pytest.MarkDecorator:
    """Skips without the compiler, unless DOVETAIL_COMPILERS promises it: then the test fails."""
    promised = os.environ.get("DOVETAIL_COMPILERS", "") not in ("", "0")
    return pytest.mark.skipif(not promised and not can_compile_for(platform), reason=reason)


needs_tpu_compiler = _skipped_without("tpu", "libtpu is not installed; `make compile` installs it")
needs_gpu_compiler = _skipped_without(
    "gpu", "no CUDA plugin is installed; `make compile` installs it"
)


def tpus(name: str, **sizes: int) -> Placement:
    """Returns a mesh over as many chips of a TPU slice as the sizes say."""
    return _placement(tpu_topology(name), sizes)


def gpus(name: str, **sizes: int) -> Placement:
    """Returns a mesh over as many GPUs of one machine as the sizes say."""
    return _placement(gpu_topology(f"nvidia-{name}"), sizes)


def _placement(devices: Sequence[Any], sizes: dict[str, int]) -> Placement:
    layout = MeshLayout.Config(**({"fsdp": 1} | sizes)).build()
    count = 1
    for size in layout.sizes.values():
        count *= size
    return Placement(layout.mesh(devices[:count]), AxisRules.Config().build())


def compiled(function: Callable[..., Any], placement: Placement, *arrays: Any) -> Any:
    """Compiles a function for a mesh; each array is (shape, dtype, logical axes), or None."""
    shapes = [
        array
        if array is None
        else jax.ShapeDtypeStruct(array[0], array[1], sharding=placement.sharding(array[2]))
        for array in arrays
    ]
    with use_placement(placement):
        return jax.jit(function).lower(*shapes).compile()


def custom_calls(program: Any) -> Counter[str]:
    """Returns how often each custom call occurs in a program."""
    return Counter(re.findall(r'custom_call_target="([^"]+)"', program.as_text()))


def kernel_runs(program: Any) -> float:
    """Returns how often hand-written kernels run in a step: XLA may unroll loops."""
    text = HloProgram(program.as_text())
    return sum(
        runs * sum(each.is_kernel for each in text.computations[name].instructions)
        for name, runs in text.runs().items()
    )


def collective_kinds(program: Any) -> set[str]:
    """Returns the kinds of collectives in a program."""
    return set(re.findall(rf" ({'|'.join(KINDS)})(?:-start)?\(", program.as_text()))


class Collective(NamedTuple):
    """One collective of a program: its mesh axes, and the shapes of its results."""

    kind: str
    axes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    in_loop: bool

    @property
    def largest(self) -> int:
        """The size of the largest array."""
        return max((math.prod(shape) for shape in self.shapes), default=0)


def program_collectives(program: Any, mesh: Mesh) -> list[Collective]:
    """Returns the collectives of a program, as a plan reads them; without axes: between slices."""
    return [
        Collective(each.kind, each.axes, tuple(array.shape for array in each.arrays), each.in_loop)
        for each in read_collectives(HloProgram(program.as_text()), mesh)
    ]


def matmul_types(program: Any) -> set[tuple[str, ...]]:
    """Returns the dtypes of each matmul of a program: of both operands, and of the result."""
    text = program.as_text()
    types = dict(re.findall(r"(%[\w.-]+) = \(?(\w+)\[", text))
    found = re.findall(r"= (\w+)\[\S* (?:dot|convolution)\((%[\w.-]+), (%[\w.-]+)\)", text)
    return {(types[left], types[right], result) for result, left, right in found}
