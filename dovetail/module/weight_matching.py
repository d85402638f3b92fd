"""Laying the rules of a mapping over the specs of a model."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence

from dovetail.config import ConfigError
from dovetail.module.mapping import FIELD, LAYER, Shape, Slot, Tensor, Weight, index_names
from dovetail.module.specs import Spec


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


def _pattern(path: str) -> re.Pattern[str]:
    pieces = []
    for piece in path.split("/"):
        if piece == "*":
            pieces.append(f"(?P<{LAYER}>.+)")
        elif match := FIELD.fullmatch(piece):
            pieces.append(rf"(?P<{match[1]}>\d+)")
        else:
            pieces.append(re.escape(piece))
    return re.compile("/".join(pieces))


def _matches(rule: Weight, slots: Mapping[str, Slot]) -> _Matches:
    names = index_names(rule.paths[0])
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
        names = index_names(rule.paths[0])
        if LAYER in names:
            places |= {index[names.index(LAYER)] for index in matches[0]}
    return {place: rank for rank, place in enumerate(sorted(places))}


def _tensors(rule: Weight, matches: _Matches, ranks: Mapping[tuple[int, ...], int]) -> list[Tensor]:
    """Groups a rule's matches by the tensor they are in."""
    names = index_names(rule.paths[0])
    named = set(FIELD.findall(rule.theirs))
    grouped: dict[str, dict[Shape, tuple[Slot, ...]]] = {}
    for index in matches[0]:
        numbers = {
            name: ranks[place] if name == LAYER else place[0]
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
