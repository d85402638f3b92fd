"""The device at fault is found by repeats in other orders, on simulated machines."""

from __future__ import annotations

import pytest

from dovetail.runtime.sdc.blame import Results, Verdict, find_device, odd_replicas
from dovetail.runtime.sdc.reordering import Order, cycled


class Machine:
    """Devices that compute one value per position; one of them computes wrong values.

    Attributes:
        bad: the faulty device.
        spreads: whether its error reaches all positions through collectives.
        once: the only run in which it fails; None means all.
    """

    def __init__(self, size: int, bad: int, *, spreads: bool, once: int | None = None) -> None:
        self.size, self.bad, self.spreads, self.once, self.runs = size, bad, spreads, once, 0

    def run(self, order: Order) -> Results:
        self.runs += 1
        rows = [f"right {position}" for position in range(self.size)]
        if self.once in (None, self.runs):
            work = order.index(self.bad)
            error = f", but {self.bad} did {work} wrong"
            for position in range(self.size) if self.spreads else [work]:
                rows[position] += error
        return [(row,) for row in rows]

    def find(self) -> Verdict:
        order = cycled(self.size, range(self.size))
        second, first = self.run(order), self.run(tuple(range(self.size)))
        assert first != second
        return find_device(first, second, order, self.run)


ALL = [(size, bad) for size in (3, 4, 5, 8, 11) for bad in range(size)]


@pytest.mark.parametrize("spreads", [False, True], ids=["in its shards", "in all shards"])
@pytest.mark.parametrize(("size", "bad"), ALL)
def test_a_lasting_fault_is_found(size: int, bad: int, spreads: bool) -> None:
    machine = Machine(size, bad, spreads=spreads)
    verdict = machine.find()
    assert verdict.devices == (bad,)
    assert verdict.persists
    assert machine.runs <= 10, "it takes about as many repeats as the logarithm of the devices"


@pytest.mark.parametrize("once", [1, 2], ids=["in the repeat", "in the step"])
@pytest.mark.parametrize(("size", "bad"), ALL)
def test_a_passing_fault_is_found_by_its_shards(size: int, bad: int, once: int) -> None:
    verdict = Machine(size, bad, spreads=False, once=once).find()
    assert verdict.devices == (bad,)
    assert not verdict.persists


@pytest.mark.parametrize("once", [1, 2])
def test_a_passing_fault_that_spread_names_nobody(once: int) -> None:
    verdict = Machine(8, 3, spreads=True, once=once).find()
    assert verdict == Verdict(
        (), False, "a repeat was right, and the error had spread through collectives"
    )


@pytest.mark.parametrize("spreads", [False, True])
def test_of_two_devices_both_are_suspects(spreads: bool) -> None:
    verdict = Machine(2, 1, spreads=spreads).find()
    assert verdict == Verdict((0, 1), True, "there is no third device to compare with")


def test_results_that_depend_on_the_order_of_devices_accuse_none() -> None:
    def run(order: Order) -> Results:
        return [(f"{position} {order}",) for position in range(len(order))]

    own, order = tuple(range(8)), cycled(8, range(8))
    verdict = find_device(run(own), run(order), order, run)
    assert verdict.devices == ()
    assert "step_check.roll=false" in verdict.why


def test_results_that_never_repeat_accuse_none() -> None:
    numbers = iter(range(100))

    def run(order: Order) -> Results:
        return [(str(next(numbers)),) for _ in order]

    own, order = tuple(range(8)), cycled(8, range(8))
    verdict = find_device(run(own), run(order), order, run)
    assert verdict.devices == ()
    assert "three repeats gave three results" in verdict.why


@pytest.mark.parametrize(
    ("copies", "odd"),
    [("aaaa", ()), ("aaba", (2,)), ("ab", (0, 1)), ("a", ()), ("aabb", (0, 1, 2, 3))],
)
def test_the_copy_that_differs_from_most_is_odd(copies: str, odd: tuple[int, ...]) -> None:
    assert odd_replicas(dict(enumerate(copies))) == odd
