"""Weight mapping: which tensor of a foreign file is which parameter of ours, as data.

A family writes rules, one a kind of tensor; both directions follow from them:

    Weight("model.layers.{layer}.mlp.up_proj.weight", "decoder/stack/*/feed_forward/up/weight",
           (Transpose(),))

`match_weights`, in a file of its own, lays the rules over the specs of a model and returns every
tensor that its file must hold. Nothing is read or written here.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Shape = tuple[int, ...]

LAYER = "layer"  # the index that `*` stands for
FIELD = re.compile(r"\{(\w+)\}")


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
        names = index_names(next(iter(self.paths)))
        unknown = [name for name in FIELD.findall(self.theirs) if name not in names]
        if unknown or any(index_names(path) != names for path in self.paths):
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


def index_names(path: str) -> list[str]:
    """Returns the names of the indices of one of our paths, in order."""
    pieces = path.split("/")
    return [LAYER if piece == "*" else piece[1:-1] for piece in pieces if _is_index(piece)]


def _is_index(piece: str) -> bool:
    return piece == "*" or FIELD.fullmatch(piece) is not None
