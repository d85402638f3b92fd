"""How chips are arranged: the tori of TPU slices, and the hosts of clusters."""

from __future__ import annotations

import itertools

Shape = tuple[int, ...]

# Slices of less than a cube of 64 come in these shapes; larger ones are made of whole cubes.
_PARTS_OF_A_CUBE: dict[int, Shape] = {4: (2, 2, 1), 8: (2, 2, 2), 16: (2, 2, 4), 32: (2, 4, 4)}
_PLANES: dict[int, Shape] = {
    1: (1, 1),
    4: (2, 2),
    8: (2, 4),
    16: (4, 4),
    32: (4, 8),
    64: (8, 8),
    128: (8, 16),
    256: (16, 16),
}


def torus_3d(chips: int, most: int) -> Shape | None:
    """Returns the shape of a slice in a 3D torus, as near to a cube as can be; None: no such one.

    Google's table of slices agrees for each size that it lists
    (https://docs.cloud.google.com/tpu/docs/v5p).
    """
    if not 0 < chips <= most:
        return None
    if chips in _PARTS_OF_A_CUBE:
        return _PARTS_OF_A_CUBE[chips]
    if chips % 64:
        return None
    cubes = chips // 64
    sides = [side for side in range(1, cubes + 1) if cubes % side == 0]
    shapes = [
        (a, b, cubes // (a * b))
        for a, b in itertools.combinations_with_replacement(sides, 2)
        if cubes % (a * b) == 0 and b <= cubes // (a * b)
    ]
    a, b, c = min(shapes, key=lambda shape: (shape[2] - shape[0], shape))
    return 4 * a, 4 * b, 4 * c


def torus_2d(chips: int, most: int) -> Shape | None:
    """Returns the shape of a slice in a 2D torus; None: there is no such one."""
    return _PLANES.get(chips) if chips <= most else None


def whole_hosts(chips: int, per_host: int) -> Shape | None:
    """Returns hosts and chips a host: a part of one host, or several whole ones."""
    if chips < 1 or (chips > per_host and chips % per_host):
        return None
    return max(1, chips // per_host), min(chips, per_host)
