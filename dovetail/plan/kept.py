"""How much of a program's memory waits for the backward pass."""

from __future__ import annotations

from dovetail.plan.hlo import Computation, Instruction, ProgramText

# JAX names what it makes for the backward pass so.
_BACKWARD = "transpose(jvp"
_SAME = ("bitcast", "copy", "copy-done", "copy-start", "fusion", "convert", "tuple", "reshape")


def kept_bytes(program: ProgramText) -> float:
    """Returns the bytes that loops of the forward pass give to loops of the backward pass.

    What stands outside of loops (embeddings, the output layer) is not counted here.
    """
    found: dict[tuple[str, int], float] = {}
    for name in program.runs():
        where = program.computations[name]
        loops = [each for each in where.instructions if each.opcode == "while"]
        for loop in loops:
            if _BACKWARD in loop.source:
                for source, index in _origins(where, loop):
                    array = where.by_name[source].results[index]
                    found[source, index] = float(array.bytes) if array.space in (0, 5) else 0.0
    return sum(found.values())


def _origins(where: Computation, loop: Instruction) -> set[tuple[str, int]]:
    """Returns which results of forward loops a loop is given."""
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
        elif each.opcode in _SAME:
            stack += each.operands
    return found
