"""The time of collectives: bytes over bandwidth, on tori and in clusters."""

from __future__ import annotations

import pytest

from dovetail.plan.links import route_of_axis
from dovetail.targets import parse_target

SIZE = 1e9


def mesh(**sizes: int) -> dict[str, int]:
    axes = ("pipeline", "data", "fsdp", "expert", "sequence", "model")
    return {axis: sizes.get(axis, 1) for axis in axes}


def test_a_ring_of_a_torus_uses_both_directions() -> None:
    machine = parse_target("tpu-v5p-128")  # 4 x 4 x 4
    route = route_of_axis(machine, mesh(data=16, fsdp=4), "fsdp")
    assert route.members == 4
    assert route.seconds("all-gather", SIZE) == pytest.approx(SIZE * 3 / 4 / 200e9, rel=0.01)
    assert route.seconds("all-reduce", SIZE) == pytest.approx(
        2 * route.seconds("all-gather", SIZE), rel=0.01
    )


def test_more_sides_of_a_torus_are_faster() -> None:
    machine = parse_target("tpu-v5p-128")
    one = route_of_axis(machine, mesh(data=16, fsdp=4), "fsdp")
    all_three = route_of_axis(machine, mesh(fsdp=64), "fsdp")
    assert all_three.link_bandwidth == 3 * one.link_bandwidth


def test_between_hosts_of_gpus_each_fetches_a_part() -> None:
    machine = parse_target("gpu-h100-64")
    inside = route_of_axis(machine, mesh(data=8, fsdp=8), "fsdp")
    assert (inside.near, inside.far) == (8, 1)
    assert inside.seconds("all-gather", SIZE) == pytest.approx(SIZE * 7 / 8 / 450e9, rel=0.02)
    both = route_of_axis(machine, mesh(fsdp=64), "fsdp")
    assert (both.near, both.far) == (8, 8)
    assert both.seconds("all-gather", SIZE) == pytest.approx(SIZE * 7 / 8 / 400e9, rel=0.02)
    alone = route_of_axis(machine, mesh(fsdp=8, model=8), "fsdp")
    assert (alone.near, alone.far) == (1, 8)
    assert alone.seconds("all-gather", SIZE) == pytest.approx(SIZE * 7 / 8 / 50e9, rel=0.02)


def test_between_slices_there_is_the_network() -> None:
    machine = parse_target("2xtpu-v5e-16")
    route = route_of_axis(machine, mesh(data=2, fsdp=16), "data")
    assert (route.near, route.far) == (1, 2)
    assert route.seconds("all-reduce", SIZE) == pytest.approx(SIZE / 3.125e9, rel=0.01)


def test_alone_nothing_is_told() -> None:
    route = route_of_axis(parse_target("tpu-v5p-8"), mesh(fsdp=4), "model")
    assert route.seconds("all-reduce", SIZE) == 0
