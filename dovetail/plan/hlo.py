"""Parsing a compiled program: its computations and their instructions.

HLO text is the one form of a compiled program that TPUs, GPUs and CPUs have in common. This file
knows its grammar; `hlo_cost.py` knows what instructions cost.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

# The custom calls of Pallas kernels on TPUs and GPUs.
KERNEL_TARGETS = ("tpu_custom_call", "mosaic_gpu_v2", "__gpu$xla.gpu.triton")
_BITS = {"pred": 8, "token": 0, "opaque": 0}
_ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,]*)\](\{[^{}]*\})?")
_HEADER = re.compile(r"^(ENTRY )?(%[\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?(%[\w.-]+) = (.*)$")
_CALLS = re.compile(r"\b(calls|to_apply|body|condition|called_computations)=\{?(%[\w.-]+)")
_BRANCHES = re.compile(r"\b(?:branch_computations)=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_BY_TRUTH = re.compile(r"\b(?:true|false)_computation=(%[\w.-]+)")


class HloArray(NamedTuple):
    """An array: its dtype, its shape and its memory space.

    `space` is 0 for HBM. Others are on-chip memory, or the host's.
    """

    dtype: str
    shape: tuple[int, ...]
    space: int = 0

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """The size in bytes, without padding."""
        return self.size * _bits(self.dtype) // 8


@dataclass(frozen=True)
class HloInstruction:
    """One line of a computation.

    Attributes:
        name: with its percent sign.
        opcode: such as `fusion`.
        results: its outputs; several for a tuple.
        operands: the names of its inputs.
        text: everything after its operands.
        is_root: whether it is the result of its computation.
    """

    name: str
    opcode: str
    results: tuple[HloArray, ...]
    operands: tuple[str, ...]
    text: str
    is_root: bool = False

    @functools.cached_property
    def called(self) -> dict[str, str]:
        """The computations that it calls, by attribute such as `body`."""
        return dict(_CALLS.findall(self.text))

    @property
    def branches(self) -> list[str]:
        """The branches of a conditional."""
        listed = _BRANCHES.search(self.text)
        if listed is not None:
            return re.findall(r"%[\w.-]+", listed[1])
        return _BY_TRUTH.findall(self.text)

    @property
    def source(self) -> str:
        """Its `op_name`: where in the traced function it comes from."""
        found = re.search(r'op_name="([^"]*)"', self.text)
        return found[1] if found is not None else ""

    @property
    def is_kernel(self) -> bool:
        """Whether it is a Pallas kernel."""
        target = re.search(r'custom_call_target="([^"]+)"', self.text)
        return target is not None and target[1] in KERNEL_TARGETS

    def sequence(self, attribute: str) -> tuple[int, ...]:
        """Parses a list attribute such as `dimensions={0,1}`."""
        found = re.search(rf"\b{attribute}=\{{([\d,]*)\}}", self.text)
        return numbers(found[1]) if found is not None else ()


class HloComputation:
    """A list of instructions, one of which is its result."""

    def __init__(self, name: str, instructions: list[HloInstruction]) -> None:
        self.name, self.instructions = name, instructions
        self.by_name = {each.name: each for each in instructions}

    @functools.cached_property
    def root(self) -> HloInstruction:
        """Its result."""
        return next((each for each in self.instructions if each.is_root), self.instructions[-1])

    @functools.cached_property
    def users(self) -> dict[str, list[HloInstruction]]:
        """The users of each instruction's result, by name."""
        found: dict[str, list[HloInstruction]] = {}
        for each in self.instructions:
            for name in dict.fromkeys(each.operands):
                found.setdefault(name, []).append(each)
        return found

    @functools.cached_property
    def parameters(self) -> list[HloInstruction]:
        """Its parameters, in order."""
        found = [each for each in self.instructions if each.opcode == "parameter"]
        return sorted(found, key=lambda each: int(re.sub(r"\D", "", each.operands[0]) or 0))


class HloProgram:
    """A compiled program.

    Attributes:
        computations: all computations by name.
        entry: the name of the entry computation.
    """

    def __init__(self, text: str) -> None:
        """Parses the result of `compiled.as_text()`."""
        self.computations: dict[str, HloComputation] = {}
        self.entry = ""
        for name, lines, is_entry in _computations(text):
            found = [each for line in lines if (each := _instruction(line)) is not None]
            self.computations[name] = HloComputation(name, found)
            self.entry = name if is_entry else self.entry

    def runs(self) -> dict[str, float]:
        """Returns how often each computation runs in one step, by the trip counts of loops.

        Fused computations are not listed. Of a conditional, the longest branch counts.
        """
        found: dict[str, float] = {}
        stack = [(self.entry, 1.0)]
        while stack:
            name, times = stack.pop()
            found[name] = found.get(name, 0.0) + times
            for each in self.computations[name].instructions:
                stack += [(inner, times * often) for inner, often in self._inside(each)]
        return found

    def callers(self) -> dict[str, str]:
        """Returns a caller of each computation that is called."""
        return {
            called: name
            for name, computation in self.computations.items()
            for each in computation.instructions
            for called in (*each.called.values(), *each.branches)
        }

    def in_loops(self) -> set[str]:
        """Returns the computations that run inside of loops."""
        names = [
            each.called["body"]
            for computation in self.computations.values()
            for each in computation.instructions
            if each.opcode == "while"
        ]
        found: set[str] = set()
        while names:
            name = names.pop()
            if name not in found:
                found.add(name)
                inner = self.computations[name].instructions
                names += [called for each in inner for called in each.called.values()]
        return found

    def _inside(self, each: HloInstruction) -> Iterator[tuple[str, float]]:
        if each.opcode == "while":
            yield each.called["body"], self.trips(each)
        elif each.opcode == "conditional":
            yield max(each.branches, key=lambda name: len(self.computations[name].instructions)), 1
        elif each.opcode in ("call", "async-start"):
            for how in ("to_apply", "calls", "called_computations"):
                if how in each.called:
                    yield each.called[how], 1

    def trips(self, loop: HloInstruction) -> float:
        """Returns the trip count of a loop; 1 if it depends on data."""
        known = _TRIPS.search(loop.text)
        if known is not None:
            return float(known[1])
        condition = self.computations[loop.called["condition"]]
        limits = [
            int(found[1])
            for each in self._all(condition)
            if each.opcode == "constant"
            and (found := re.match(r"(\d+)\)?", each.operands[0] if each.operands else ""))
        ]
        return float(max(limits, default=1))

    def _all(self, computation: HloComputation) -> Iterator[HloInstruction]:
        """Yields the instructions of a computation and of its fusions."""
        for each in computation.instructions:
            yield each
            if each.opcode == "fusion":
                yield from self._all(self.computations[each.called["calls"]])


def numbers(text: str) -> tuple[int, ...]:
    """Returns all integers in a text."""
    return tuple(int(number) for number in re.findall(r"\d+", text))


def arrays(text: str) -> tuple[HloArray, ...]:
    """Parses the arrays of a type, which may be a tuple."""
    return tuple(
        HloArray(dtype, numbers(shape), _space(layout or ""))
        for dtype, shape, layout in _ARRAY.findall(text)
    )


@functools.cache
def _bits(dtype: str) -> int:
    found = re.search(r"\d+", dtype)
    return _BITS.get(dtype, int(found[0]) if found is not None else 8)


def _space(layout: str) -> int:
    found = re.search(r"S\((\d+)\)", layout)
    return int(found[1]) if found is not None else 0


def _computations(text: str) -> Iterator[tuple[str, list[str], bool]]:
    """Splits a program into computations; kernel metadata that spans several lines is joined."""
    name, lines, is_entry = "", list[str](), False
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header is not None:
            name, lines, is_entry = header[2], [], bool(header[1])
        elif name and (line == "}" or line.startswith("}, ")):
            yield name, lines, is_entry
            name = ""
        elif name and _INSTRUCTION.match(line):
            lines.append(line)
        elif name and lines:
            lines[-1] += line


def _instruction(line: str) -> HloInstruction | None:
    match = _INSTRUCTION.match(line)
    if match is None:
        return None
    name, rest = match[2], match[3]
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    results, rest = rest[:end], rest[end:].lstrip()
    opcode, _, _ = rest.partition("(")
    end = _closing(rest, len(opcode))
    inner = rest[len(opcode) + 1 : end]
    operands = tuple(re.findall(r"%[\w.-]+", inner)) or ((inner,) if inner else ())
    return HloInstruction(name, opcode, arrays(results), operands, rest[end + 1 :], bool(match[1]))


def _closing(text: str, start: int) -> int:
    """Returns the index of the bracket that closes the one at `start`."""
    depth = 0
    for index in range(start, len(text)):
        if text[index] == "(":
            depth += 1
        elif text[index] == ")":
            depth -= 1
            if depth == 0:
                return index
    return len(text)
