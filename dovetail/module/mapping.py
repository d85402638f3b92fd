"""Weight mapping: which tensor of a foreign file is which parameter of ours, as data.

A family writes rules, one a kind of tensor; both directions follow from them:

    Weight("model.layers.{layer}.mlp.up_proj.weight", "decoder/stack/*/feed_forward/up/weight",
           (Transpose(),))

`match_weights` lays the rules over the specs of a model and returns every tensor that its file
must hold. Nothing is read or written here.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dovetail.config import ConfigError
from dovetail.module.specs import Spec

Array = NDArray[Any]
Shape = tuple[int, ...]

_LAYER = "layer"  # the index that `*` stands for
_FIELD = re.compile(r"\{(\w+)\}")


class Step(Protocol):
    """A rearrangement of numbers, exact both ways. Axes count from the end of one array."""

    def shapes(self, ours: Sequence[Shape]) -> list[Shape]:
        """Returns the shapes on their side, given those on ours."""
        ...

    def forward(self, theirs: Sequence[Array], ours: Sequence[Shape]) -> list[Array]:
        """Rearranges their arrays into ours, of the given shapes."""
        ...

    def inverse(self, ours: Sequence[Array]) -> list[Array]:
        """Rearranges our arrays into theirs."""
        ...


@dataclass(frozen=True)
class Transpose:
    """Swaps the last two axes: a torch Linear keeps (out, in), ours (in, out)."""

    def shapes(self, ours: Sequence[Shape]) -> list[Shape]:
        """Swaps the last two sizes."""
        return [(*shape[:-2], shape[-1], shape[-2]) for shape in ours]

    def forward(self, theirs: Sequence[Array], ours: Sequence[Shape]) -> list[Array]:
        """Swaps each."""
        return [np.swapaxes(array, -1, -2) for array in theirs]

    def inverse(self, ours: Sequence[Array]) -> list[Array]:
        """Swaps each back."""
        return [np.swapaxes(array, -1, -2) for array in ours]


@dataclass(frozen=True)
class Split:
    """Theirs is ours, one after another along an axis (a fused QKV, a fused gate and up)."""

    axis: int

    def shapes(self, ours: Sequence[Shape]) -> list[Shape]:
        """Adds the sizes along the axis."""
        sizes = list(ours[0])
        sizes[self.axis] = sum(shape[self.axis] for shape in ours)
        return [tuple(sizes)]

    def forward(self, theirs: Sequence[Array], ours: Sequence[Shape]) -> list[Array]:
        """Cuts one array into ours."""
        ends = list(itertools.accumulate(shape[self.axis] for shape in ours))
        return np.split(theirs[0], ends[:-1], axis=self.axis)

    def inverse(self, ours: Sequence[Array]) -> list[Array]:
        """Joins ours into one."""
        return [np.concatenate(ours, axis=self.axis)]


@dataclass(frozen=True)
class Interleave:
    """Theirs takes turns among ours along an axis: first of each, second of each, and so on."""

    axis: int

    def shapes(self, ours: Sequence[Shape]) -> list[Shape]:
        """Adds the sizes along the axis, which are all the same."""
        return Split(self.axis).shapes(ours)

    def forward(self, theirs: Sequence[Array], ours: Sequence[Shape]) -> list[Array]:
        """Takes every n-th slice."""
        (array,), count = theirs, len(ours)
        axis = self.axis % array.ndim
        whole = (slice(None),) * axis
        return [array[(*whole, slice(turn, None, count))] for turn in range(count)]

    def inverse(self, ours: Sequence[Array]) -> list[Array]:
        """Lets ours take turns."""
        axis = self.axis % ours[0].ndim
        stacked = np.stack(ours, axis=axis + 1)
        return [stacked.reshape(self.shapes([array.shape for array in ours])[0])]


@dataclass(frozen=True)
class Weight:
    """One rule: a tensor of theirs, by layer, is one or more parameters of ours.

    Attributes:
        theirs: the name, with `{layer}` and other indices such as `{expert}` in braces.
        ours: a per-layer path, as `Spec.layer_paths` writes it. `*` stands for one or more pieces,
            and the integers among them are the layer's place, however stacks are nested; `{layer}`
            is the rank of that place among all that any rule found. `{expert}` is one integer
            piece. An index that theirs does not name is a leading axis of theirs. Several paths:
            theirs holds them joined, and the first step takes them apart.
        steps: what makes theirs into ours, in order.
    """

    theirs: str
    ours: str | tuple[str, ...]
    steps: tuple[Step, ...] = ()

    def __post_init__(self) -> None:
        """Refuses a rule that cannot be followed both ways."""
        if len(self.paths) > 1 and not isinstance(next(iter(self.steps), None), Split | Interleave):
            raise ValueError(
                f"{self.theirs}: several parameters of ours need a first step that takes them "
                "apart: Split or Interleave."
            )
        for path in self.paths:
            if path.count("*") > 1:
                raise ValueError(f"{self.theirs}: {path!r} may hold one * only.")
        names = _indices(self.paths[0])
        unknown = [name for name in _FIELD.findall(self.theirs) if name not in names]
        if unknown or any(_indices(path) != names for path in self.paths):
            raise ValueError(
                f"{self.theirs}: its indices must be those of {' and '.join(self.paths)}; `*` is "
                "the one of {layer}."
            )

    @property
    def paths(self) -> tuple[str, ...]:
        """Our paths, also where there is only one."""
        return (self.ours,) if isinstance(self.ours, str) else self.ours


@dataclass(frozen=True)
class Slot:
    """One layer's array of ours: which parameter, and where among its stacked axes."""

    path: str
    index: tuple[int, ...]
    shape: Shape


@dataclass(frozen=True)
class Tensor:
    """A tensor of theirs, and the slots of ours that it fills.

    Attributes:
        name: as their file says it.
        lead: the sizes of the leading axes that stand for indices which the name leaves out.
        slots: for each place along the leading axes, in order, one slot a path of the rule.
        steps: what makes one element of theirs into those slots.
    """

    name: str
    lead: Shape
    slots: tuple[tuple[Slot, ...], ...]
    steps: tuple[Step, ...]

    @property
    def element_shape(self) -> Shape:
        """The shape at one place along the leading axes."""
        return self._shapes()[0][0]

    @property
    def shape(self) -> Shape:
        """The whole shape."""
        return (*self.lead, *self.element_shape)

    def elements(self) -> list[tuple[Shape, tuple[Slot, ...]]]:
        """Returns each place along the leading axes, with the slots that it fills."""
        places = itertools.product(*(range(size) for size in self.lead))
        return list(zip(places, self.slots, strict=True))

    def to_ours(self, element: Array) -> list[Array]:
        """Makes one element of theirs into the arrays of its slots."""
        arrays = [element]
        for step, shapes in zip(self.steps, self._shapes()[1:], strict=True):
            arrays = step.forward(arrays, shapes)
        return arrays

    def to_theirs(self, arrays: Sequence[Array]) -> Array:
        """Makes the arrays of the slots of one place into an element of theirs."""
        for step in reversed(self.steps):
            arrays = step.inverse(arrays)
        return arrays[0]

    def _shapes(self) -> list[list[Shape]]:
        """Returns the shapes before each step and after the last, from theirs to ours."""
        shapes = [[slot.shape for slot in self.slots[0]]]
        for step in reversed(self.steps):
            shapes.insert(0, step.shapes(shapes[0]))
        return shapes


def match_weights(
    rules: Sequence[Weight], specs: Mapping[str, Spec], optional: Sequence[str] = ()
) -> dict[str, Tensor]:
    """Returns every tensor that the rules make of a model's specs, by their name.

    Args:
        rules: those that find none of their paths are unused.
        specs: the model's parameters and variables, by path.
        optional: the paths that need no rule (variables that a foreign file does not know).
    """
    slots = {
        layer_path: Slot(path, index, spec.layer_shape)
        for path, spec in specs.items()
        for layer_path, index in zip(spec.layer_paths(path), _places(spec), strict=True)
    }
    found = [(rule, _matches(rule, slots)) for rule in rules]
    ranks = _ranks(found)
    tensors: dict[str, Tensor] = {}
    for rule, matches in found:
        for tensor in _tensors(rule, matches, ranks):
            if tensor.name in tensors:
                raise ConfigError(f"Two rules make the tensor {tensor.name}: {rule}. Remove one.")
            tensors[tensor.name] = tensor
    _check_all_filled(tensors, slots, optional)
    return tensors


# A rule's matches, one dictionary a path of ours: from indices (by name) to the slot.
_Index = tuple[tuple[int, ...], ...]
_Matches = list[dict[_Index, Slot]]


def _places(spec: Spec) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(size) for size in spec.shape[: spec.stacked])))


def _indices(path: str) -> list[str]:
    """Returns the names of the indices of one of our paths, in order."""
    pieces = path.split("/")
    return [_LAYER if piece == "*" else piece[1:-1] for piece in pieces if _is_index(piece)]


def _is_index(piece: str) -> bool:
    return piece == "*" or _FIELD.fullmatch(piece) is not None


def _pattern(path: str) -> re.Pattern[str]:
    pieces = []
    for piece in path.split("/"):
        if piece == "*":
            pieces.append(f"(?P<{_LAYER}>.+)")
        elif match := _FIELD.fullmatch(piece):
            pieces.append(rf"(?P<{match[1]}>\d+)")
        else:
            pieces.append(re.escape(piece))
    return re.compile("/".join(pieces))


def _matches(rule: Weight, slots: Mapping[str, Slot]) -> _Matches:
    names = _indices(rule.paths[0])
    all_found: _Matches = []
    for path in rule.paths:
        pattern = _pattern(path)
        found: dict[_Index, Slot] = {}
        for layer_path, slot in slots.items():
            if match := pattern.fullmatch(layer_path):
                numbers = [
                    [int(n) for n in match[name].split("/") if n.isdigit()] for name in names
                ]
                found[tuple(map(tuple, numbers))] = slot
        all_found.append(found)
    if any(found.keys() != all_found[0].keys() for found in all_found):
        counts = dict(zip(rule.paths, map(len, all_found), strict=True))
        raise ConfigError(
            f"{rule.theirs} joins parameters of which this model has not all: {counts}. Its family "
            "cannot say this model."
        )
    return all_found


def _ranks(found: Sequence[tuple[Weight, _Matches]]) -> dict[tuple[int, ...], int]:
    """Numbers the places that any rule found with `*`, in order."""
    places = set()
    for rule, matches in found:
        names = _indices(rule.paths[0])
        if _LAYER in names:
            places |= {index[names.index(_LAYER)] for index in matches[0]}
    return {place: rank for rank, place in enumerate(sorted(places))}


def _tensors(rule: Weight, matches: _Matches, ranks: Mapping[tuple[int, ...], int]) -> list[Tensor]:
    """Groups a rule's matches by the tensor they are in."""
    names = _indices(rule.paths[0])
    named = set(_FIELD.findall(rule.theirs))
    grouped: dict[str, dict[Shape, tuple[Slot, ...]]] = {}
    for index in matches[0]:
        numbers = {
            name: ranks[place] if name == _LAYER else place[0]
            for name, place in zip(names, index, strict=True)
        }
        lead = tuple(number for name, number in numbers.items() if name not in named)
        slots = tuple(found[index] for found in matches)
        grouped.setdefault(rule.theirs.format(**numbers), {})[lead] = slots
    return [_tensor(rule, name, elements) for name, elements in grouped.items()]


def _tensor(rule: Weight, name: str, elements: Mapping[Shape, tuple[Slot, ...]]) -> Tensor:
    lead = tuple(max(place) + 1 for place in zip(*elements, strict=True))
    if math.prod(lead) != len(elements):
        raise ConfigError(
            f"{name} has the leading axes {lead}, but only {len(elements)} of its places are "
            f"parameters of this model ({', '.join(rule.paths)})."
        )
    slots = tuple(elements[place] for place in sorted(elements))
    return Tensor(name, lead, slots, rule.steps)


def _check_all_filled(
    tensors: Mapping[str, Tensor], slots: Mapping[str, Slot], optional: Sequence[str]
) -> None:
    """Refuses a mapping that leaves one of our arrays out, or fills one twice."""
    by_slot: dict[Slot, str] = {}
    for tensor in tensors.values():
        for slot in itertools.chain.from_iterable(tensor.slots):
            if slot in by_slot:
                raise ConfigError(
                    f"Both {by_slot[slot]} and {tensor.name} fill {slot.path} {slot.index}. Make "
                    "the rules of the family exclude each other."
                )
            by_slot[slot] = tensor.name
    for layer_path, slot in slots.items():
        if slot not in by_slot and slot.path not in optional:
            raise ConfigError(
                f"{layer_path}: no rule of the family says which tensor this parameter is, so its "
                "format cannot hold this model."
            )
