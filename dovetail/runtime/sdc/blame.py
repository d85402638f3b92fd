"""Finds the device at fault after a step has given two results from the same inputs.

It repeats the step with the devices in other orders. A device with a lasting fault repeats its
error on its own work. So the result changes exactly if that device swaps its work with another
one, even if collectives have spread the error.

In this module a result is one value per position.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from dovetail.runtime.sdc.reordering import Order, cycled

Results = list[tuple[str, ...]]
"""The digests of each position."""


@dataclass(frozen=True)
class Verdict:
    """The devices that may be at fault, as positions of the mesh of the run.

    Attributes:
        devices: one if the search succeeded; otherwise several, or none.
        persists: whether the fault repeats itself.
        why: the evidence, or why there is none.
    """

    devices: tuple[int, ...]
    persists: bool
    why: str


def find_device(
    first: Results, second: Results, order: Order, repeat: Callable[[Order], Results]
) -> Verdict:
    """Finds the device that computed a wrong result.

    Args:
        first: the results of the devices in their own order.
        second: different results, of the devices in another order.
        order: the order of the devices for `second`.
        repeat: computes the step again with the devices in an order.
    """
    own = tuple(range(len(order)))
    again = repeat(own)
    if again != first:
        if again != second:
            why = "three repeats gave three results; is the program deterministic on these devices?"
            return Verdict((), True, why)
        return _passing(first, again, own)
    if repeat(order) == first:
        return _passing(second, first, order)
    pairs = [{own[i], order[i]} for i in different(first, second)]
    common = set.intersection(*pairs)
    if len(common) == 1:
        return Verdict(tuple(common), True, "only its shards differ, and again in a repeat")
    return _search(first, sorted(set.union(*pairs)), repeat)


def different(first: Results, second: Results) -> list[int]:
    """Returns the positions at which results differ."""
    return [i for i, pair in enumerate(zip(first, second, strict=True)) if pair[0] != pair[1]]


def odd_replicas(copies: Mapping[int, Hashable]) -> tuple[int, ...]:
    """Returns the devices whose copy differs from the majority; all, if there is no majority."""
    counts = Counter(copies.values()).most_common()
    if len(counts) == 1:
        return ()
    usual, count = counts[0]
    if 2 * count <= len(copies):
        return tuple(copies)
    return tuple(device for device, copy in copies.items() if copy != usual)


def _passing(wrong: Results, right: Results, order: Order) -> Verdict:
    """Judges an error that did not repeat itself: the devices whose shards were wrong."""
    devices = tuple(order[i] for i in different(wrong, right))
    if len(devices) == 1:
        return Verdict(devices, False, "only its shards differed, and a repeat was right")
    return Verdict(
        () if len(devices) == len(order) else devices,
        False,
        "a repeat was right, and the error had spread through collectives",
    )


def _search(first: Results, suspects: Sequence[int], repeat: Callable[[Order], Results]) -> Verdict:
    """Swaps the work of some suspects, again and again, until one is left."""
    size = len(first)

    def is_among(devices: Sequence[int]) -> bool:
        return repeat(cycled(size, devices)) != first

    if len(suspects) >= 4:
        middle = len(suspects) // 2
        halves = [suspects[:middle], suspects[middle:]]
        found = [half for half in halves if is_among(half)]
        if len(found) != 1:
            return Verdict(
                (),
                True,
                "the results depend on the order of the devices in a way that no single device "
                "explains. Either several are faulty, or collectives sum in an order that depends "
                "on it here; then set step_check.roll=false",
            )
        suspects = found[0]
    while len(suspects) > 1:
        good = [device for device in range(size) if device not in suspects][:1]
        some = suspects[: max(len(suspects) // 2, 2 - len(good))]
        if len(some) == len(suspects):
            return Verdict(tuple(suspects), True, "there is no third device to compare with")
        rest = suspects[len(some) :]
        suspects = some if is_among([*some, *good]) else rest
    return Verdict(tuple(suspects), True, "the result changes when it does other work")
