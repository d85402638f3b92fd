"""Weight mapping: which tensor of a foreign checkpoint is which of our parameters, as data.

A model family lists one rule for each kind of tensor. Import and export both follow from them:

    WeightRule("model.layers.{layer}.mlp.up_proj.weight", "decoder/stack/*/feed_forward/up/weight",
               (Transpose(),))

`match_weights` matches the rules against the specs of a model, and returns every tensor that a
checkpoint of the model holds. Nothing is read or written here.
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


class TensorTransform(Protocol):
    """An invertible rearrangement of elements. Axes count from the end of one array."""

    def shapes(self, ours: Sequence[Shape]) -> list[Shape]:
        """Returns the foreign shapes, given those of our parameters."""
        ...

    def forward(self, foreign: Sequence[Array], ours: Sequence[Shape]) -> list[Array]:
        """Converts foreign arrays into parameters of the given shapes."""
        ...

    def inverse(self, ours: Sequence[Array]) -> list[Array]:
        """Converts parameters into foreign arrays."""
        ...


@dataclass(frozen=True)
class Transpose:
    """Swaps the last two axes: a torch Linear stores (out, in), ours stores (in, out)."""

    def shapes(self, ours: Sequence[Shape]) -> list[Shape]:
        """Swaps the last two sizes."""
        return [(*shape[:-2], shape[-1], shape[-2]) for shape in ours]

    def forward(self, foreign: Sequence[Array], ours: Sequence[Shape]) -> list[Array]:
        """Transposes each array."""
        return [np.swapaxes(array, -1, -2) for array in foreign]

    def inverse(self, ours: Sequence[Array]) -> list[Array]:
        """Transposes each array."""
        return [np.swapaxes(array, -1, -2) for array in ours]


@dataclass(frozen=True)
class Split:
    """Splits a foreign tensor that concatenates several parameters (a fused QKV, gate and up)."""

    axis: int

    def shapes(self, ours: Sequence[Shape]) -> list[Shape]:
        """Adds the sizes along the axis."""
        sizes = list(ours[0])
        sizes[self.axis] = sum(shape[self.axis] for shape in ours)
        return [tuple(sizes)]

    def forward(self, foreign: Sequence[Array], ours: Sequence[Shape]) -> list[Array]:
        """Splits the array."""
        ends = list(itertools.accumulate(shape[self.axis] for shape in ours))
        return np.split(foreign[0], ends[:-1], axis=self.axis)

    def inverse(self, ours: Sequence[Array]) -> list[Array]:
        """Concatenates the parameters."""
        return [np.concatenate(ours, axis=self.axis)]


@dataclass(frozen=True)
class Interleave:
    """Splits a foreign tensor that interleaves parameters along an axis, as in a0 b0 a1 b1."""

    axis: int

    def shapes(self, ours: Sequence[Shape]) -> list[Shape]:
        """Adds the sizes along the axis, which are all equal."""
        return Split(self.axis).shapes(ours)

    def forward(self, foreign: Sequence[Array], ours: Sequence[Shape]) -> list[Array]:
        """Takes every n-th slice."""
        (array,), count = foreign, len(ours)
        before = (slice(None),) * (self.axis % array.ndim)
        return [array[(*before, slice(start, None, count))] for start in range(count)]

    def inverse(self, ours: Sequence[Array]) -> list[Array]:
        """Interleaves the parameters."""
        axis = self.axis % ours[0].ndim
        stacked = np.stack(ours, axis=axis + 1)
        return [stacked.reshape(self.shapes([array.shape for array in ours])[0])]


@dataclass(frozen=True)
class WeightRule:
    """One rule: a foreign tensor, per layer, is one or more of our parameters.

    Attributes:
        foreign: the tensor's name, with `{layer}` and other indices such as `{expert}` in braces.
        parameters: a per-layer path, as `Spec.layer_paths` writes it. `*` matches one or more
            pieces; the integers among them locate the layer, however stacks are nested. `{layer}`
            is the rank of that location among all that any rule matched. `{expert}` matches one
            integer piece. An index that `foreign` does not name is a leading axis of the tensor.
            With several paths, the tensor holds them joined, and the first transform splits it.
        transforms: from the foreign tensor to the parameters, in order.
    """

    foreign: str
    parameters: str | tuple[str, ...]
    transforms: tuple[TensorTransform, ...] = ()

    def __post_init__(self) -> None:
        """Refuses a rule that has no inverse."""
        first = next(iter(self.transforms), None)
        if len(self.paths) > 1 and not isinstance(first, Split | Interleave):
            raise ValueError(
                f"{self.foreign}: several parameters need a first transform that splits the "
                "tensor: Split or Interleave."
            )
        for path in self.paths:
            if path.count("*") > 1:
                raise ValueError(f"{self.foreign}: {path!r} may hold one * only.")
        names = _index_names(next(iter(self.paths)))
        unknown = [name for name in _FIELD.findall(self.foreign) if name not in names]
        if unknown or any(_index_names(path) != names for path in self.paths):
            raise ValueError(
                f"{self.foreign}: its indices must be those of {' and '.join(self.paths)}; `*` is "
                "the one of {layer}."
            )

    @property
    def paths(self) -> tuple[str, ...]:
        """The parameter paths, as a tuple also where there is only one."""
        return (self.parameters,) if isinstance(self.parameters, str) else self.parameters


@dataclass(frozen=True)
class ParameterSlice:
    """One layer's array: the parameter's path, and the index along its stacked axes."""

    path: str
    index: tuple[int, ...]
    shape: Shape


@dataclass(frozen=True)
class ForeignTensor:
    """A tensor of a foreign checkpoint, and the parameter slices that it fills.

    Attributes:
        name: the name in the foreign file.
        lead: the sizes of the leading axes, which stand for the indices that the name leaves out.
        slices: for each index along the leading axes, in order, one slice per path of the rule.
        transforms: from one element along the leading axes to its slices.
    """

    name: str
    lead: Shape
    slices: tuple[tuple[ParameterSlice, ...], ...]
    transforms: tuple[TensorTransform, ...]

    @property
    def element_shape(self) -> Shape:
        """The shape of one element along the leading axes."""
        return self._shapes()[0][0]

    @property
    def shape(self) -> Shape:
        """The full shape."""
        return (*self.lead, *self.element_shape)

    @property
    def all_slices(self) -> list[ParameterSlice]:
        """The slices of all elements."""
        return list(itertools.chain.from_iterable(self.slices))

    def elements(self) -> list[tuple[Shape, tuple[ParameterSlice, ...]]]:
        """Returns each index along the leading axes, with the slices that it fills."""
        indices = itertools.product(*(range(size) for size in self.lead))
        return list(zip(indices, self.slices, strict=True))

    def to_parameters(self, element: Array) -> list[Array]:
        """Converts one element of the tensor into the arrays of its slices."""
        arrays = [element]
        for transform, shapes in zip(self.transforms, self._shapes()[1:], strict=True):
            arrays = transform.forward(arrays, shapes)
        return arrays

    def to_foreign(self, arrays: Sequence[Array]) -> Array:
        """Converts the arrays of the slices of one element into that element."""
        for transform in reversed(self.transforms):
            arrays = transform.inverse(arrays)
        return arrays[0]

    def _shapes(self) -> list[list[Shape]]:
        """Returns the shapes before each transform and after the last, from foreign to ours."""
        shapes = [[one.shape for one in self.slices[0]]]
        for transform in reversed(self.transforms):
            shapes.insert(0, transform.shapes(shapes[0]))
        return shapes


def match_weights(
    rules: Sequence[WeightRule], specs: Mapping[str, Spec], optional: Sequence[str] = ()
) -> dict[str, ForeignTensor]:
    """Returns every foreign tensor of a model by name.

    Args:
        rules: rules that match no parameter are unused.
        specs: the model's parameters and variables, by path.
        optional: paths that need no rule (variables that a foreign checkpoint does not store).
    """
    slices = {
        layer_path: ParameterSlice(path, index, spec.layer_shape)
        for path, spec in specs.items()
        for layer_path, index in zip(
            spec.layer_paths(path), np.ndindex(spec.shape[: spec.stacked]), strict=True
        )
    }
    found = [(rule, _matches(rule, slices)) for rule in rules]
    ranks = _ranks(found)
    tensors: dict[str, ForeignTensor] = {}
    for rule, matches in found:
        for tensor in _tensors(rule, matches, ranks):
            if tensor.name in tensors:
                raise ConfigError(f"Two rules make the tensor {tensor.name}: {rule}. Remove one.")
            tensors[tensor.name] = tensor
    _check_all_filled(tensors, slices, optional)
    return tensors


# A rule's matches, one dictionary per path: from indices (by name) to the slice.
_Index = tuple[tuple[int, ...], ...]
_Matches = list[dict[_Index, ParameterSlice]]


def _index_names(path: str) -> list[str]:
    """Returns the names of the indices of a parameter path, in order."""
    pieces = path.split("/")
    return [
        _LAYER if piece == "*" else piece[1:-1]
        for piece in pieces
        if piece == "*" or _FIELD.fullmatch(piece)
    ]


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


def _matches(rule: WeightRule, slices: Mapping[str, ParameterSlice]) -> _Matches:
    names = _index_names(rule.paths[0])
    all_found: _Matches = []
    for path in rule.paths:
        pattern = _pattern(path)
        found: dict[_Index, ParameterSlice] = {}
        for layer_path, one in slices.items():
            if match := pattern.fullmatch(layer_path):
                numbers = [
                    [int(n) for n in match[name].split("/") if n.isdigit()] for name in names
                ]
                found[tuple(map(tuple, numbers))] = one
        all_found.append(found)
    if any(found.keys() != all_found[0].keys() for found in all_found):
        counts = dict(zip(rule.paths, map(len, all_found), strict=True))
        raise ConfigError(
            f"{rule.foreign} joins parameters, some of which this model lacks: {counts}. The "
            "format of its family cannot express this model."
        )
    return all_found


def _ranks(found: Sequence[tuple[WeightRule, _Matches]]) -> dict[tuple[int, ...], int]:
    """Numbers the layers that any rule matched with `*`, in order."""
    layers = set()
    for rule, matches in found:
        names = _index_names(rule.paths[0])
        if _LAYER in names:
            layers |= {index[names.index(_LAYER)] for index in matches[0]}
    return {layer: rank for rank, layer in enumerate(sorted(layers))}


def _tensors(
    rule: WeightRule, matches: _Matches, ranks: Mapping[tuple[int, ...], int]
) -> list[ForeignTensor]:
    """Groups a rule's matches by tensor."""
    names = _index_names(rule.paths[0])
    named = set(_FIELD.findall(rule.foreign))
    by_name: dict[str, dict[Shape, tuple[ParameterSlice, ...]]] = {}
    for index in matches[0]:
        numbers = {
            name: ranks[position] if name == _LAYER else position[0]
            for name, position in zip(names, index, strict=True)
        }
        lead = tuple(number for name, number in numbers.items() if name not in named)
        slices = tuple(found[index] for found in matches)
        by_name.setdefault(rule.foreign.format(**numbers), {})[lead] = slices
    return [_tensor(rule, name, elements) for name, elements in by_name.items()]


def _tensor(
    rule: WeightRule, name: str, elements: Mapping[Shape, tuple[ParameterSlice, ...]]
) -> ForeignTensor:
    lead = tuple(max(sizes) + 1 for sizes in zip(*elements, strict=True))
    if math.prod(lead) != len(elements):
        raise ConfigError(
            f"{name} has the leading axes {lead}, but only {len(elements)} of its elements are "
            f"parameters of this model ({', '.join(rule.paths)})."
        )
    slices = tuple(elements[index] for index in sorted(elements))
    return ForeignTensor(name, lead, slices, rule.transforms)


def _check_all_filled(
    tensors: Mapping[str, ForeignTensor],
    slices: Mapping[str, ParameterSlice],
    optional: Sequence[str],
) -> None:
    """Refuses a mapping that leaves out one of our arrays, or fills one twice."""
    filled_by: dict[ParameterSlice, str] = {}
    for tensor in tensors.values():
        for one in tensor.all_slices:
            if one in filled_by:
                raise ConfigError(
                    f"Both {filled_by[one]} and {tensor.name} fill {one.path} {one.index}. Make "
                    "the rules of the family exclude each other."
                )
            filled_by[one] = tensor.name
    for layer_path, one in slices.items():
        if one not in filled_by and one.path not in optional:
            raise ConfigError(
                f"{layer_path}: no rule of the family maps this parameter to a tensor, so its "
                "format cannot express this model."
            )
