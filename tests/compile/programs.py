"""Programs compiled for machines that are not there, and what their text says."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from dovetail.hardware import can_compile_for, gpu_topology, tpu_topology
from dovetail.parallel import MESH_AXES, AxisRules, MeshLayout, Placement, placed
from dovetail.plan.groups import groups_of

KINDS = "ragged-all-to-all|all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute"

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
    in_loops = _in_loops(bodies)
    found = set()
    for name, text in bodies.items():
        for result, kind in re.findall(rf"= (.*?) ({KINDS})(?:-start)?\(", text):
            for sizes in re.findall(r"\w+\[([\d,]+)\]", result):
                shape = tuple(int(size) for size in sizes.split(","))
                found.add(Exchange(kind, shape, name in in_loops))
    return found


class Talk(NamedTuple):
    """One collective of a program.

    Attributes:
        kind: what it is; a reduction of which each device keeps a part is a reduce-scatter.
        axes: the mesh axes along which the devices lie that talk to each other.
        shapes: what each device has in hand afterwards.
        in_loop: whether it stands in a loop.
    """

    kind: str
    axes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    in_loop: bool

    @property
    def largest(self) -> int:
        """The size of the largest array."""
        return max((math.prod(shape) for shape in self.shapes), default=0)


class Crossing(NamedTuple):
    """What each device of a TPU slice sends over the network to other slices."""

    kind: str
    shape: tuple[int, ...]
    in_loop: bool


def talks(program: Any, mesh: Mesh) -> list[Talk]:
    """Returns what devices of one slice tell each other, in order; a thing told once counts once.

    Over several TPU slices it is the program of one of them. `crossings` are the rest.
    """
    bodies = _computations(program.as_text())
    in_loops = _in_loops(bodies)
    places = _places(mesh)
    found: dict[str, Talk] = {}
    for name, text in bodies.items():
        for line in text.splitlines():
            match = re.search(rf" = (.*?) ({KINDS})(?:-start)?\(", line)
            if match is None:
                continue
            kind = "reduce-scatter" if "all-reduce-scatter" in name else match[2]
            axes = _axes_of(groups_of(line), places)
            shapes = tuple(map(tuple, map(_numbers, re.findall(r"\w+\[([\d,]*)\]", match[1]))))
            # An asynchronous one stands in its fusion at every step, each time with its channel.
            # What a shard_map has written has the same channel everywhere.
            channel = re.search(r"channel_id=(\d+)", line) if "async" in name else None
            key = f"{match[2]} {channel[1]}" if channel else line
            if axes:
                found.setdefault(key, Talk(kind, axes, shapes, name in in_loops))
    return list(found.values())


def crossings(program: Any) -> list[Crossing]:
    """Returns what the program of one TPU slice sends to the others."""
    bodies = _computations(program.as_text())
    in_loops = _in_loops(bodies)
    sent = r" = \(\w+\[([\d,]*)\].*? send\(.*_xla_megascale_transfer_type=\"(\w+)\""
    return [
        Crossing(kind.lower(), tuple(_numbers(sizes)), name in in_loops)
        for name, text in bodies.items()
        for sizes, kind in re.findall(sent, text)
    ]


def _in_loops(bodies: dict[str, str]) -> set[str]:
    return _reached(bodies, [name for text in bodies.values() for name in _called(text, "body")])


def _places(mesh: Mesh) -> np.ndarray[Any, Any]:
    """Returns where in the mesh each device stands that a program numbers."""
    slices = np.vectorize(lambda device: getattr(device, "slice_index", 0) or 0)(mesh.devices)
    first = mesh.devices.flat[0]
    return np.argwhere((slices == slices.flat[0]) | (first.platform != "tpu"))


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _axes_of(members: list[list[int]], places: np.ndarray[Any, Any]) -> tuple[str, ...]:
    """Returns the mesh axes along which the members of a group differ."""
    different = [(places[group] != places[group[0]]).any(axis=0) for group in members]
    return tuple(
        name for name, differs in zip(MESH_AXES, np.any(different, 0), strict=True) if differs
    )


def _computations(text: str) -> dict[str, str]:
    """Splits a program into its computations, by name."""
    # To a brace that stands alone: the metadata of a kernel may have lines of its own.
    header = r"^(?:ENTRY )?(%[\w.-]+) \([^\n]*\{\n"
    return dict(re.findall(rf"{header}(.*?)^\}}$", text, re.MULTILINE | re.DOTALL))


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
