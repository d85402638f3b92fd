"""What devices tell each other in a compiled program: which kind, along which axes, how much."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jax.sharding import Mesh

from dovetail.parallel import MESH_AXES
from dovetail.plan.groups import Groups, groups_of
from dovetail.plan.hlo import Array, Computation, Instruction, ProgramText

KINDS = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)
NETWORK = "send"
"""Between TPU slices there are no collectives: the host sends what it is given."""


@dataclass(frozen=True)
class Collective:
    """One collective of a program.

    Attributes:
        kind: what it is; a reduction of which each device keeps a part is a reduce-scatter.
        axes: the mesh axes along which the devices lie that talk to each other.
        arrays: what each device has in hand afterwards.
        bytes: the size of the whole that is gathered, added up or exchanged, on one device.
        group: one of the groups that talk, by the places of its devices in the mesh.
        runs: how often it is done in a step.
        is_hidden: whether the devices can compute meanwhile.
        computation: where it stands.
        in_loop: whether that is in a loop.
    """

    kind: str
    axes: tuple[str, ...]
    arrays: tuple[Array, ...]
    bytes: int
    group: tuple[int, ...]
    runs: float
    is_hidden: bool
    computation: str
    in_loop: bool

    @property
    def crosses(self) -> bool:
        """Says whether it goes over the network between slices, along no axis of one of them."""
        return not self.axes


def collectives(program: ProgramText, mesh: Mesh) -> list[Collective]:
    """Returns what devices tell each other in one step; a thing told once counts once.

    Over several TPU slices the program is that of one of them, and what goes to the others crosses.
    """
    return _Reader(program, mesh).read()


class _Reader:
    def __init__(self, program: ProgramText, mesh: Mesh) -> None:
        self.program, self.places = program, _places(mesh)
        self.runs = program.runs()
        self.in_loops = program.in_loops()
        self.callers = program.callers()

    def read(self) -> list[Collective]:
        found: dict[str, Collective] = {}
        for computation in self.program.computations.values():
            for each in computation.instructions:
                one = self._collective(computation, each)
                if one is not None:
                    found.setdefault(self._identity(computation, each), one)
        return list(found.values())

    def _collective(self, where: Computation, each: Instruction) -> Collective | None:
        kind = each.opcode.removesuffix("-start")
        if kind == NETWORK and "_xla_megascale_transfer_type" in each.text:
            return self._crossing(where, each)
        if kind not in KINDS:
            return None
        groups = groups_of(each.text) or [list(range(len(self.places)))]
        axes = _axes_of(groups, self.places)
        if not axes:
            return None
        is_scatter = kind == "reduce-scatter" or "all-reduce-scatter" in where.name
        made = self._made(where, each, "reduce-scatter" if is_scatter else kind, axes, groups)
        whole = self._operands(where, each) if is_scatter else made.arrays
        return replace(made, bytes=sum(array.bytes for array in whole))

    def _crossing(self, where: Computation, each: Instruction) -> Collective:
        told = re.search(r"_xla_megascale_transfer_type=\"(\w+)\"", each.text)
        kind = told[1].lower().replace("_", "-") if told is not None else NETWORK
        made = self._made(where, each, kind, (), [[0]])
        return replace(made, arrays=each.results[:1], bytes=each.results[0].bytes)

    def _made(
        self,
        where: Computation,
        each: Instruction,
        kind: str,
        axes: tuple[str, ...],
        groups: Groups,
    ) -> Collective:
        arrays = _given(each)
        return Collective(
            kind=kind,
            axes=axes,
            arrays=arrays,
            bytes=sum(array.bytes for array in arrays),
            group=tuple(groups[0]),
            runs=self._runs(where.name),
            is_hidden=each.opcode.endswith("-start") or "async" in where.name,
            computation=self._runner(where.name),
            in_loop=where.name in self.in_loops,
        )

    def _operands(self, where: Computation, each: Instruction) -> tuple[Array, ...]:
        names = [name for name in each.operands if name in where.by_name]
        return tuple(array for name in names for array in where.by_name[name].results)

    def _identity(self, where: Computation, each: Instruction) -> str:
        """Tells collectives apart.

        An asynchronous one stands in its fusion at every step, each time with its channel. What a
        shard_map has written has the same channel everywhere.
        """
        channel = re.search(r"channel_id=(\d+)", each.text) if "async" in where.name else None
        return f"{each.opcode} {channel[1]}" if channel else f"{where.name} {each.name}"

    def _runs(self, name: str) -> float:
        return self.runs.get(self._runner(name), 1.0)

    def _runner(self, name: str) -> str:
        """Returns the computation that is run, of which this one is a fused part."""
        while name not in self.runs and name in self.callers:
            name = self.callers[name]
        return name


def _given(each: Instruction) -> tuple[Array, ...]:
    """Returns what a collective gives; the start of most also names what it takes, and flags."""
    taken = len(each.operands)
    if not each.opcode.endswith("-start") or len(each.results) < 2 * taken:
        return each.results[:taken]  # an all-reduce names its results alone
    return each.results[taken : 2 * taken]


def _places(mesh: Mesh) -> np.ndarray[Any, Any]:
    """Returns where in the mesh each device stands that a program numbers."""
    slices = np.vectorize(lambda device: getattr(device, "slice_index", 0) or 0)(mesh.devices)
    first = mesh.devices.flat[0]
    return np.argwhere((slices == slices.flat[0]) | (first.platform != "tpu"))


def _axes_of(groups: Groups, places: np.ndarray[Any, Any]) -> tuple[str, ...]:
    """Returns the mesh axes along which the members of a group differ."""
    different = [(places[group] != places[group[0]]).any(axis=0) for group in groups]
    return tuple(
        name for name, differs in zip(MESH_AXES, np.any(different, 0), strict=True) if differs
    )
