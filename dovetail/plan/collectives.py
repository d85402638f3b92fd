"""The collectives of a compiled program: kind, mesh axes, device groups and bytes."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jax.sharding import Mesh

from dovetail.parallel import MESH_AXES
from dovetail.plan.hlo import HloArray, HloComputation, HloInstruction, HloProgram, numbers

Groups = list[list[int]]

KINDS = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)
DCN_SEND = "send"
"""Between TPU slices there are no collectives: hosts send over the data-center network."""


@dataclass(frozen=True)
class Collective:
    """One collective of a program.

    Attributes:
        kind: XLA's name. An all-reduce of which each device keeps one shard is a reduce-scatter.
        axes: the mesh axes along which the devices of a group differ.
        arrays: its results on one device.
        bytes: the unsharded bytes that are gathered, reduced or sent, per device.
        group: one of its device groups, by position in the mesh.
        runs: how often it runs in a step.
        is_async: whether the devices can compute meanwhile.
        computation: the computation that runs it.
        in_loop: whether that is in a loop.
    """

    kind: str
    axes: tuple[str, ...]
    arrays: tuple[HloArray, ...]
    bytes: int
    group: tuple[int, ...]
    runs: float
    is_async: bool
    computation: str
    in_loop: bool

    @property
    def is_over_dcn(self) -> bool:
        """Whether it goes over the data-center network between slices, along no mesh axis."""
        return not self.axes


def collectives(program: HloProgram, mesh: Mesh) -> list[Collective]:
    """Returns the collectives of one step, each once.

    With several TPU slices the program is that of one slice, which sends to others over the DCN.
    """
    return _CollectiveParser(program, mesh).parse()


class _CollectiveParser:
    def __init__(self, program: HloProgram, mesh: Mesh) -> None:
        self.program, self.mesh_positions = program, _mesh_positions(mesh)
        self.runs = program.runs()
        self.in_loops = program.in_loops()
        self.callers = program.callers()

    def parse(self) -> list[Collective]:
        found: dict[str, Collective] = {}
        for computation in self.program.computations.values():
            for each in computation.instructions:
                one = self._collective(computation, each)
                if one is not None:
                    found.setdefault(self._identity(computation, each), one)
        return list(found.values())

    def _collective(self, where: HloComputation, each: HloInstruction) -> Collective | None:
        kind = each.opcode.removesuffix("-start")
        if kind == DCN_SEND and "_xla_megascale_transfer_type" in each.text:
            return self._dcn_send(where, each)
        if kind not in KINDS:
            return None
        groups = _device_groups(each.text) or [list(range(len(self.mesh_positions)))]
        axes = _axes_of(groups, self.mesh_positions)
        if not axes:
            return None
        is_scatter = kind == "reduce-scatter" or "all-reduce-scatter" in where.name
        collective = self._make(where, each, "reduce-scatter" if is_scatter else kind, axes, groups)
        unsharded = self._operands(where, each) if is_scatter else collective.arrays
        return replace(collective, bytes=sum(array.bytes for array in unsharded))

    def _dcn_send(self, where: HloComputation, each: HloInstruction) -> Collective:
        found = re.search(r"_xla_megascale_transfer_type=\"(\w+)\"", each.text)
        kind = found[1].lower().replace("_", "-") if found is not None else DCN_SEND
        collective = self._make(where, each, kind, (), [[0]])
        return replace(collective, arrays=each.results[:1], bytes=each.results[0].bytes)

    def _make(
        self,
        where: HloComputation,
        each: HloInstruction,
        kind: str,
        axes: tuple[str, ...],
        groups: Groups,
    ) -> Collective:
        arrays = _results(each)
        return Collective(
            kind=kind,
            axes=axes,
            arrays=arrays,
            bytes=sum(array.bytes for array in arrays),
            group=tuple(groups[0]),
            runs=self.runs.get(self._runner(where.name), 1.0),
            is_async=each.opcode.endswith("-start") or "async" in where.name,
            computation=self._runner(where.name),
            in_loop=where.name in self.in_loops,
        )

    def _operands(self, where: HloComputation, each: HloInstruction) -> tuple[HloArray, ...]:
        names = [name for name in each.operands if name in where.by_name]
        return tuple(array for name in names for array in where.by_name[name].results)

    def _identity(self, where: HloComputation, each: HloInstruction) -> str:
        """Returns a key that is unique per collective.

        An asynchronous collective appears several times with the same channel. Collectives of a
        `shard_map` share one channel, so theirs is not used.
        """
        channel = re.search(r"channel_id=(\d+)", each.text) if "async" in where.name else None
        return f"{each.opcode} {channel[1]}" if channel else f"{where.name} {each.name}"

    def _runner(self, name: str) -> str:
        """Returns the computation that runs a fused one."""
        while name not in self.runs and name in self.callers:
            name = self.callers[name]
        return name


def _results(each: HloInstruction) -> tuple[HloArray, ...]:
    """Returns the results of a collective; those of a `-start` may include operands."""
    operands = len(each.operands)
    if not each.opcode.endswith("-start") or len(each.results) < 2 * operands:
        return each.results[:operands]  # an all-reduce-start has results alone
    return each.results[operands : 2 * operands]


def _mesh_positions(mesh: Mesh) -> np.ndarray[Any, Any]:
    """Returns the mesh position of each device that the program numbers."""
    slices = np.vectorize(lambda device: getattr(device, "slice_index", 0) or 0)(mesh.devices)
    first = mesh.devices.flat[0]
    return np.argwhere((slices == slices.flat[0]) | (first.platform != "tpu"))


def _axes_of(groups: Groups, positions: np.ndarray[Any, Any]) -> tuple[str, ...]:
    """Returns the mesh axes along which the devices of a group differ."""
    different = [(positions[group] != positions[group[0]]).any(axis=0) for group in groups]
    return tuple(
        name for name, differs in zip(MESH_AXES, np.any(different, 0), strict=True) if differs
    )


def _device_groups(text: str) -> Groups:
    """Parses the device groups of a collective; empty if it is among all devices."""
    pairs = re.search(r"source_target_pairs=\{(.*?)\}\}", text)
    if pairs is not None:
        return _listed_groups(pairs[1])
    listed = re.search(r"replica_groups=\{\{(.*?)\}\}", text)
    if listed is not None:
        return _listed_groups(listed[1])
    counted = re.search(r"replica_groups=\[([\d,]+)\]<=(\[[\d,]+\](?:T\([\d,]+\))?)", text)
    if counted is not None:
        return _iota(counted[2]).reshape(numbers(counted[1])).tolist()
    named = re.search(r"replica_groups=mesh\[(.*?)\](.*?) \{(.*?)\}", text)
    return _groups_by_axis(*named.groups()) if named is not None else []


def _groups_by_axis(sizes: str, order: str, names: str) -> Groups:
    """Parses groups that are written as mesh axes, or as parts of them."""
    shape = {name: int(size) for name, size in re.findall(r"('\w+')=(\d+)", sizes)}
    dimensions: list[tuple[int, bool]] = []
    for axis, size in shape.items():
        parts = re.findall(rf"{axis}(?::\((\d+)\)(\d+))?", names)
        if not parts or not parts[0][0]:
            dimensions.append((size, bool(parts)))
            continue
        before, part = map(int, parts[0])
        dimensions += [(before, False), (part, True), (size // (before * part), False)]
    devices = _iota(order) if order else np.arange(math.prod(shape.values()))
    devices = devices.reshape([size for size, _ in dimensions])
    inside = [index for index, (_, is_inside) in enumerate(dimensions) if is_inside]
    outside = [index for index in range(len(dimensions)) if index not in inside]
    count = math.prod(dimensions[index][0] for index in inside)
    return devices.transpose(*outside, *inside).reshape(-1, count).tolist()


def _iota(text: str) -> np.ndarray[Any, Any]:
    """Parses `[4,16]T(1,0)`: an iota of that shape, transposed."""
    shape, _, order = text.partition("T(")
    devices = np.arange(math.prod(numbers(shape))).reshape(numbers(shape))
    return (devices.transpose(numbers(order)) if order else devices).reshape(-1)


def _listed_groups(text: str) -> Groups:
    return [list(numbers(group)) for group in text.split("},{")]
