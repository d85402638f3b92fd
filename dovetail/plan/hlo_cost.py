"""The cost of HLO instructions: FLOPs, bytes to and from HBM and the host, saved activations."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dovetail.plan.hlo import HloArray, HloComputation, HloInstruction, HloProgram

# Opcodes that compute and move nothing, or whose cost is counted elsewhere.
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
_MATMULS = ("dot", "convolution")
_UPDATE = "dynamic-update-slice"
_SLICES = ("dynamic-slice", "slice", "gather")
_HOST_MEMORY_SPACE = 5
_MOVES = ("copy", "dynamic-slice", _UPDATE)
_SAME_BYTES = ("bitcast", "copy", "get-tuple-element", "reshape", "convert")

# The part of an op name that JAX gives to operations of the backward pass.
_BACKWARD = "transpose(jvp"
_PASS_THROUGH = (
    "bitcast",
    "copy",
    "copy-done",
    "copy-start",
    "fusion",
    "convert",
    "tuple",
    "reshape",
)


class InstructionCost(NamedTuple):
    """The FLOPs of matmuls, the bytes to and from HBM, and the bytes to and from the host."""

    flops: float = 0.0
    bytes: float = 0.0
    host_bytes: float = 0.0


def instruction_cost(
    program: HloProgram, where: HloComputation, each: HloInstruction
) -> InstructionCost:
    """Returns the cost of one instruction, including what is fused into it."""
    if each.opcode in FREE or each.opcode.endswith(("-done", "-update")) or _ALLOCATES in each.text:
        return InstructionCost()
    return InstructionCost(
        _flops(program, where, each), _hbm_bytes(program, where, each), _host_bytes(where, each)
    )


def matmul_operands(program: HloProgram) -> Iterator[InstructionCost]:
    """Yields the FLOPs of every matmul, with the bytes of its two operands."""
    for where in program.computations.values():
        for each in where.instructions:
            if each.opcode in _MATMULS:
                pair = [where.by_name[name].results[0].bytes for name in each.operands[:2]]
                yield InstructionCost(_flops(program, where, each), sum(pair))


def saved_activation_bytes(program: HloProgram) -> float:
    """Returns the bytes that forward loops pass to loops of the backward pass.

    Activations outside of loops (embeddings, the output layer) are not counted.
    """
    found: dict[tuple[str, int], float] = {}
    for name in program.runs():
        where = program.computations[name]
        loops = [each for each in where.instructions if each.opcode == "while"]
        for loop in loops:
            if _BACKWARD in loop.source:
                for source, index in _forward_results(where, loop):
                    array = where.by_name[source].results[index]
                    is_saved = array.space in (0, _HOST_MEMORY_SPACE)
                    found[source, index] = float(array.bytes) if is_saved else 0.0
    return sum(found.values())


def _forward_results(where: HloComputation, loop: HloInstruction) -> set[tuple[str, int]]:
    """Returns the results of forward loops that reach the operands of a loop."""
    found: set[tuple[str, int]] = set()
    stack, seen = list(loop.operands), set[str]()
    while stack:
        name = stack.pop()
        each = where.by_name.get(name)
        if each is None or name in seen:
            continue
        seen.add(name)
        if each.opcode == "get-tuple-element":
            source = where.by_name.get(each.operands[0])
            if source is not None and source.opcode == "while" and _BACKWARD not in source.source:
                index = int(each.text.partition("index=")[2].split(",")[0])
                found.add((source.name, index))
            elif source is not None and source.opcode != "while":
                stack.append(each.operands[0])
        elif each.opcode in _PASS_THROUGH:
            stack += each.operands
    return found


def _flops(program: HloProgram, where: HloComputation, each: HloInstruction) -> float:
    if each.opcode == "fusion":
        inner = program.computations[each.called["calls"]]
        return sum(_flops(program, inner, one) for one in inner.instructions)
    if each.opcode not in _MATMULS:
        return 0.0
    left, right = (where.by_name[name].results[0] for name in each.operands[:2])
    result = each.results[0]
    # Without batch axes the three sizes are MK, KN and MN, so the root of their product is MNK.
    batch = math.prod(_batch_sizes(each, left, right, result))
    return 2 * math.sqrt(left.size * right.size * result.size / batch)


def _batch_sizes(
    each: HloInstruction, left: HloArray, right: HloArray, result: HloArray
) -> Iterable[int]:
    """Returns the sizes of the axes that both operands and the result have."""
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


def _hbm_bytes(program: HloProgram, where: HloComputation, each: HloInstruction) -> float:
    operands = [
        where.by_name[name] for name in dict.fromkeys(each.operands) if name in where.by_name
    ]
    if each.opcode == "fusion":
        inner = program.computations[each.called["calls"]]
        reads = sum(
            _read_bytes(program, inner, parameter, operand)
            for parameter, operand in zip(
                inner.parameters, [where.by_name[name] for name in each.operands], strict=False
            )
        )
        return reads + _written_bytes(program, inner, inner.root, each.results)
    if each.opcode == _UPDATE:
        return 2.0 * _bytes_in_hbm(operands[1].results)
    if each.opcode in _SLICES:
        return 2.0 * _bytes_in_hbm(each.results)
    return _bytes_in_hbm(each.results) + sum(_bytes_in_hbm(one.results) for one in operands)


def _host_bytes(where: HloComputation, each: HloInstruction) -> float:
    """Returns the bytes between device and host: an array, or a slice of one."""
    if each.opcode.removesuffix("-start") not in _MOVES:
        return 0.0
    operands = [where.by_name[name] for name in each.operands if name in where.by_name]
    arrays = [array for one in (each, *operands) for array in one.results if array.shape]
    if not any(array.space == _HOST_MEMORY_SPACE for array in arrays):
        return 0.0
    return float(min(array.bytes for array in arrays))


def _read_bytes(
    program: HloProgram, where: HloComputation, parameter: HloInstruction, operand: HloInstruction
) -> float:
    """Returns how much of an operand a fusion reads: all of it, or slices."""
    total = _bytes_in_hbm(operand.results)
    if not total:
        return 0.0
    read = 0.0
    for user in where.users.get(parameter.name, []):
        if user.opcode == _UPDATE and user.operands[0] == parameter.name:
            continue  # updated in place
        if user.opcode in _SLICES and user.operands[0] == parameter.name:
            read += user.results[0].bytes
        elif user.opcode == "fusion":
            inner = program.computations[user.called["calls"]]
            index = user.operands.index(parameter.name)
            read += _read_bytes(program, inner, inner.parameters[index], operand)
        elif user.opcode == "bitcast":
            read += _read_bytes(program, where, user, operand)
        else:
            return total
    return min(read, total)


def _written_bytes(
    program: HloProgram,
    where: HloComputation,
    root: HloInstruction,
    results: tuple[HloArray, ...],
) -> float:
    """Returns how much a fusion writes: all of its results, or in-place updates."""
    if root.opcode == "tuple":
        elements = [where.by_name[name] for name in root.operands]
        return sum(
            _written_bytes(program, where, element, (result,))
            for element, result in zip(elements, results, strict=False)
        )
    while root.opcode in _SAME_BYTES and root.operands[0] in where.by_name:
        root = where.by_name[root.operands[0]]
    if root.opcode == "fusion":
        inner = program.computations[root.called["calls"]]
        return _written_bytes(program, inner, inner.root, results)
    if root.opcode == _UPDATE:
        update = where.by_name[root.operands[1]].results[0]
        return float(update.bytes) if _bytes_in_hbm(results) else 0.0
    return _bytes_in_hbm(results)


def _bytes_in_hbm(arrays: Iterable[HloArray]) -> float:
    return float(sum(array.bytes for array in arrays if array.space == 0))
