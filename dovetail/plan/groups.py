"""Which devices take part in a collective: the ways in which XLA writes groups."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from dovetail.plan.hlo import numbers

Groups = list[list[int]]


def groups_of(text: str) -> Groups:
    """Reads the groups of devices that talk to each other, by their place in the mesh.

    A collective without groups is among all devices; then there are none here.
    """
    pairs = re.search(r"source_target_pairs=\{(.*?)\}\}", text)
    if pairs is not None:
        return _listed(pairs[1])
    listed = re.search(r"replica_groups=\{\{(.*?)\}\}", text)
    if listed is not None:
        return _listed(listed[1])
    counted = re.search(r"replica_groups=\[([\d,]+)\]<=(\[[\d,]+\](?:T\([\d,]+\))?)", text)
    if counted is not None:
        return _rows(_in_order(counted[2]).reshape(numbers(counted[1])))
    named = re.search(r"replica_groups=mesh\[(.*?)\](.*?) \{(.*?)\}", text)
    return _by_names(*named.groups()) if named is not None else []


def _by_names(sizes: str, order: str, names: str) -> Groups:
    """Reads groups that are written as axes of a mesh, of which an axis may be a part."""
    shape = {name: int(size) for name, size in re.findall(r"('\w+')=(\d+)", sizes)}
    cut: list[tuple[int, bool]] = []
    for axis, size in shape.items():
        parts = re.findall(rf"{axis}(?::\((\d+)\)(\d+))?", names)
        if not parts or not parts[0][0]:
            cut.append((size, bool(parts)))
            continue
        before, part = map(int, parts[0])
        cut += [(before, False), (part, True), (size // (before * part), False)]
    places = _in_order(order) if order else np.arange(math.prod(shape.values()))
    places = places.reshape([size for size, _ in cut])
    inside = [index for index, (_, is_inside) in enumerate(cut) if is_inside]
    outside = [index for index in range(len(cut)) if index not in inside]
    count = math.prod(cut[index][0] for index in inside)
    return _rows(places.transpose(*outside, *inside).reshape(-1, count))


def _in_order(text: str) -> np.ndarray[Any, Any]:
    """Reads `[4,16]T(1,0)`: the numbers of a table, with its axes in another order."""
    shape, _, order = text.partition("T(")
    places = np.arange(math.prod(numbers(shape))).reshape(numbers(shape))
    return (places.transpose(numbers(order)) if order else places).reshape(-1)


def _rows(places: np.ndarray[Any, Any]) -> Groups:
    found: Groups = places.tolist()
    return found


def _listed(text: str) -> Groups:
    return [list(numbers(group)) for group in text.split("},{")]
