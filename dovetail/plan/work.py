"""What an instruction of a compiled program does: multiplications, and bytes to and from memory."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dovetail.plan.hlo import Array, Computation, Instruction, ProgramText

# Nothing is computed or moved by these; or it is, and another line tells of it.
FREE = frozenset(
    {
        "after-all",
        "bitcast",
        "conditional",
        "constant",
        "get-tuple-element",
        "opt-barrier",
        "parameter",
        "partition-id",
        "replica-id",
        "tuple",
        "while",
        "call",
    }
)
_ALLOCATES = 'custom_call_target="AllocateBuffer"'
_PRODUCTS = ("dot", "convolution")
_WRITES = "dynamic-update-slice"
_SLICES = ("dynamic-slice", "slice", "gather")
# The memory space of the host, which is over a link of its own.
_HOST = 5
_MOVES = ("copy", "dynamic-slice", _WRITES)
_SAME = ("bitcast", "copy", "get-tuple-element", "reshape", "convert")


class Work(NamedTuple):
    """Operations of matrix products; bytes to and from the main memory, and the host's."""

    flops: float = 0.0
    bytes: float = 0.0
    host: float = 0.0


def work_of(program: ProgramText, where: Computation, each: Instruction) -> Work:
    """Returns what one line of a computation does, whatever is fused into it."""
    if each.opcode in FREE or each.opcode.endswith(("-done", "-update")) or _ALLOCATES in each.text:
        return Work()
    return Work(_flops(program, where, each), _bytes(program, where, each), _host(where, each))


def factors(program: ProgramText) -> Iterator[Work]:
    """Yields the products of a program, each with the bytes of its two factors."""
    for where in program.computations.values():
        for each in where.instructions:
            if each.opcode in _PRODUCTS:
                pair = [where.by_name[name].results[0].bytes for name in each.operands[:2]]
                yield Work(_flops(program, where, each), sum(pair))


def _flops(program: ProgramText, where: Computation, each: Instruction) -> float:
    if each.opcode == "fusion":
        inner = program.computations[each.called["calls"]]
        return sum(_flops(program, inner, one) for one in inner.instructions)
    if each.opcode not in _PRODUCTS:
        return 0.0
    left, right = (where.by_name[name].results[0] for name in each.operands[:2])
    result = each.results[0]
    # Without batch axes the three sizes are MK, KN and MN, so the root of their product is MNK.
    batch = math.prod(_batch(each, left, right, result))
    return 2 * math.sqrt(left.size * right.size * result.size / batch)


def _batch(each: Instruction, left: Array, right: Array, result: Array) -> Iterable[int]:
    """Returns the sizes of the axes that both factors and the result have."""
    if each.opcode == "dot":
        return [left.shape[axis] for axis in each.sequence("lhs_batch_dims")]
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", each.text)
    if labels is None:
        return []
    sizes = [
        {axis: array.shape[index] for index, axis in enumerate(names) if axis.isdigit()}
        for names, array in zip(labels.groups(), (left, right, result), strict=True)
    ]
    return [n for axis, n in sizes[0].items() if sizes[1].get(axis) == sizes[2].get(axis) == n]


def _bytes(program: ProgramText, where: Computation, each: Instruction) -> float:
    taken = [where.by_name[name] for name in dict.fromkeys(each.operands) if name in where.by_name]
    if each.opcode == "fusion":
        inner = program.computations[each.called["calls"]]
        reads = sum(
            _read(program, inner, parameter, operand)
            for parameter, operand in zip(
                inner.parameters, [where.by_name[name] for name in each.operands], strict=False
            )
        )
        return reads + _written(program, inner, inner.root, each.results)
    if each.opcode == _WRITES:
        return 2.0 * _in_memory(taken[1].results)
    if each.opcode in _SLICES:
        return 2.0 * _in_memory(each.results)
    return _in_memory(each.results) + sum(_in_memory(one.results) for one in taken)


def _host(where: Computation, each: Instruction) -> float:
    """Returns what goes between the device and its host: all of an array, or a slice of it."""
    if each.opcode.removesuffix("-start") not in _MOVES:
        return 0.0
    taken = [where.by_name[name] for name in each.operands if name in where.by_name]
    given = [array for one in (each, *taken) for array in one.results if array.shape]
    if not any(array.space == _HOST for array in given):
        return 0.0
    return float(min(array.bytes for array in given))


def _read(
    program: ProgramText, where: Computation, parameter: Instruction, given: Instruction
) -> float:
    """Returns how much a fusion reads of what it is given: a slice of it, or all."""
    whole = _in_memory(given.results)
    if not whole:
        return 0.0
    read = 0.0
    for user in where.users.get(parameter.name, []):
        if user.opcode == _WRITES and user.operands[0] == parameter.name:
            continue  # written in place
        if user.opcode in _SLICES and user.operands[0] == parameter.name:
            read += user.results[0].bytes
        elif user.opcode == "fusion":
            inner = program.computations[user.called["calls"]]
            index = user.operands.index(parameter.name)
            read += _read(program, inner, inner.parameters[index], given)
        elif user.opcode == "bitcast":
            read += _read(program, where, user, given)
        else:
            return whole
    return min(read, whole)


def _written(
    program: ProgramText, where: Computation, root: Instruction, results: tuple[Array, ...]
) -> float:
    """Returns how much a fusion writes: what is new in an array that it updates, or all."""
    if root.opcode == "tuple":
        parts = [where.by_name[name] for name in root.operands]
        return sum(
            _written(program, where, part, (result,))
            for part, result in zip(parts, results, strict=False)
        )
    while root.opcode in _SAME and root.operands[0] in where.by_name:
        root = where.by_name[root.operands[0]]
    if root.opcode == "fusion":
        inner = program.computations[root.called["calls"]]
        return _written(program, inner, inner.root, results)
    if root.opcode == _WRITES:
        update = where.by_name[root.operands[1]].results[0]
        return float(update.bytes) if _in_memory(results) else 0.0
    return _in_memory(results)


def _in_memory(found: Iterable[Array]) -> float:
    return float(sum(array.bytes for array in found if array.space == 0))
