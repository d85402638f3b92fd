"""The time of collectives: bytes over bandwidth, on tori and in clusters."""

from __future__ import annotations

import pytest

from dovetail.plan.interconnect import axis_interconnect
from dovetail.targets import parse_target

SIZE = 1e9


def mesh(**sizes: int) -> dict[str, int]:
    axes = ("pipeline", "data", "fsdp", "expert", "sequence", "model")
    return {axis: sizes.get(axis, 1) for axis in axes}


def test_a_ring_of_a_torus_uses_both_directions() -> None:
    machine = parse_target("tpu-v5p-128")  # 4 x 4 x 4
    links = axis_interconnect(machine, mesh(data=16, fsdp=4), "fsdp")
    assert links.devices == 4
    assert links.seconds("all-gather", SIZE) == pytest.approx(SIZE * 3 / 4 / 200e9, rel=0.01)
    assert links.seconds("all-reduce", SIZE) == pytest.approx(
        2 * links.seconds("all-gather", SIZE), rel=0.01
    )


def test_more_sides_of_a_torus_are_faster() -> None:
    machine = parse_target("tpu-v5p-128")
    one = axis_interconnect(machine, mesh(data=16, fsdp=4), "fsdp")
    all_three = axis_interconnect(machine, mesh(fsdp=64), "fsdp")
    assert all_three.link_bandwidth == 3 * one.link_bandwidth


def test_gpus_of_a_host_share_an_all_gather_over_the_network() -> None:
    machine = parse_target("gpu-h100-64")
    inside = axis_interconnect(machine, mesh(data=8, fsdp=8), "fsdp")
    assert (inside.domain_size, inside.domains) == (8, 1)
    assert inside.seconds("all-gather", SIZE) == pytest.approx(SIZE * 7 / 8 / 450e9, rel=0.02)
    both = axis_interconnect(machine, mesh(fsdp=64), "fsdp")
    assert (both.domain_size, both.domains) == (8, 8)
    assert both.seconds("all-gather", SIZE) == pytest.approx(SIZE * 7 / 8 / 400e9, rel=0.02)
    alone = axis_interconnect(machine, mesh(fsdp=8, model=8), "fsdp")
    assert (alone.domain_size, alone.domains) == (1, 8)
    assert alone.seconds("all-gather", SIZE) == pytest.approx(SIZE * 7 / 8 / 50e9, rel=0.02)


def test_slices_are_joined_by_the_network() -> None:
    machine = parse_target("2xtpu-v5e-16")
    links = axis_interconnect(machine, mesh(data=2, fsdp=16), "data")
    assert (links.domain_size, links.domains) == (1, 2)
    assert links.seconds("all-reduce", SIZE) == pytest.approx(SIZE / 3.125e9, rel=0.01)


def test_a_single_device_does_not_communicate() -> None:
    links = axis_interconnect(parse_target("tpu-v5p-8"), mesh(fsdp=4), "model")
    assert links.seconds("all-reduce", SIZE) == 0
