"""Programs compiled for machines that are not there, and what their text says."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import pytest

from dovetail.hardware import can_compile_for, gpu_topology, tpu_topology
from dovetail.parallel import AxisRules, MeshLayout, Placement, placed

KINDS = "all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute"

needs_tpu_compiler = pytest.mark.skipif(
    not can_compile_for("tpu"), reason="libtpu is not installed; `make compile` installs it"
)
needs_gpu_compiler = pytest.mark.skipif(
    not can_compile_for("gpu"), reason="no CUDA plugin is installed; `make compile` installs it"
)


def tpus(name: str, **sizes: int) -> Placement:
    """Returns a mesh over as many chips of a TPU slice as the sizes say."""
    return _placement(tpu_topology(name), sizes)


def gpus(name: str, **sizes: int) -> Placement:
    """Returns a mesh over as many GPUs of one machine as the sizes say."""
    return _placement(gpu_topology(name), sizes)


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
    with placed(placement):
        return jax.jit(function).lower(*shapes).compile()


def custom_calls(program: Any) -> Counter[str]:
    """Returns how often each kernel stands in a program."""
    return Counter(re.findall(r'custom_call_target="([^"]+)"', program.as_text()))


def collectives(program: Any) -> set[str]:
    """Returns which kinds of communication a program has."""
    return set(re.findall(rf"\b({KINDS})\b", program.as_text()))


class Exchange(NamedTuple):
    """What devices exchange at one place of a program."""

    kind: str
    shape: tuple[int, ...]
    in_loop: bool


def exchanged(program: Any) -> set[Exchange]:
    """Returns every exchange of arrays between devices, and whether it stands in a loop."""
    bodies = _computations(program.as_text())
    in_loops = _reached(
        bodies, [name for text in bodies.values() for name in _called(text, "body")]
    )
    found = set()
    for name, text in bodies.items():
        for result, kind in re.findall(rf"= (.*?) ({KINDS})(?:-start)?\(", text):
            for sizes in re.findall(r"\w+\[([\d,]+)\]", result):
                shape = tuple(int(size) for size in sizes.split(","))
                found.add(Exchange(kind, shape, name in in_loops))
    return found


def _computations(text: str) -> dict[str, str]:
    """Splits a program into its computations, by name."""
    found = re.findall(r"^(?:ENTRY )?(%[\w.-]+) \(.*\{\n((?:  .*\n)*)\}", text, re.MULTILINE)
    return dict(found)


def _called(text: str, how: str = r"body|condition|calls|to_apply") -> list[str]:
    return re.findall(rf"\b(?:{how})=(%[\w.-]+)", text)


def _reached(bodies: dict[str, str], names: list[str]) -> set[str]:
    """Returns these computations and all that they call."""
    reached: set[str] = set()
    while names:
        name = names.pop()
        if name not in reached:
            reached.add(name)
            names += _called(bodies.get(name, ""))
    return reached


def product_types(program: Any) -> set[tuple[str, ...]]:
    """Returns the types of each matrix product of a program: of both factors, and of the result."""
    text = program.as_text()
    types = dict(re.findall(r"(%[\w.-]+) = \(?(\w+)\[", text))
    found = re.findall(r"= (\w+)\[\S* (?:dot|convolution)\((%[\w.-]+), (%[\w.-]+)\)", text)
    return {(types[left], types[right], result) for result, left, right in found}
