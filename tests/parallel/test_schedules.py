"""Pipeline schedules: every part runs once, in order, and little is held."""

from __future__ import annotations

import pytest

from dovetail.config import ConfigError
from dovetail.parallel.schedules import Rounds

SIZES = [(2, 2, 1), (4, 8, 1), (4, 3, 1), (3, 7, 1), (2, 4, 2), (4, 8, 3), (3, 9, 2)]


@pytest.mark.parametrize(("stages", "microbatches", "rounds"), SIZES)
def test_parts_run_once_and_in_order(stages: int, microbatches: int, rounds: int) -> None:
    schedule = Rounds(stages, microbatches, rounds)
    forward, backward = turns(schedule, "forward"), turns(schedule, "backward")
    wanted = {(p, m) for p in range(stages * rounds) for m in range(microbatches)}
    assert forward.keys() == backward.keys() == wanted
    for part, microbatch in wanted:
        if part:
            before = forward[part - 1, microbatch]
            assert forward[part, microbatch] == before + 1, "it arrives at the tick it is due"
            assert backward[part - 1, microbatch] == backward[part, microbatch] + 1
        assert backward[part, microbatch] >= forward[part, microbatch]
    assert max(backward.values()) == schedule.ticks - 1
    assert max(forward.values()) == schedule.forward_ticks - 1


@pytest.mark.parametrize(("stages", "microbatches", "rounds"), SIZES)
def test_what_is_held_has_a_place_of_its_own(stages: int, microbatches: int, rounds: int) -> None:
    schedule = Rounds(stages, microbatches, rounds)
    forward, backward = turns(schedule, "forward"), turns(schedule, "backward")
    for (part, microbatch), begun in forward.items():
        for other in range(microbatches):
            begun_later = begun < forward[part, other] <= backward[part, microbatch]
            if begun_later:
                assert other % schedule.held != microbatch % schedule.held


def test_what_is_held_does_not_grow() -> None:
    assert Rounds(4, 8).held == Rounds(4, 64).held == 8
    assert Rounds(4, 16, 2).held == Rounds(4, 64, 2).held == 12


def test_interleaving_makes_the_bubble_smaller() -> None:
    assert Rounds(4, 8).bubble == pytest.approx(6 / 14)
    # Ticks are half as long with two rounds.
    assert Rounds(4, 8, 2).bubble < Rounds(4, 8).bubble


def test_groups_must_be_whole() -> None:
    with pytest.raises(ConfigError, match="6 do not divide into groups of 4"):
        Rounds(4, 6, 2)


def turns(schedule: Rounds, direction: str) -> dict[tuple[int, int], int]:
    """Returns the tick of each (part of the whole, micro-batch)."""
    found = {}
    for tick in range(schedule.ticks):
        for stage in range(schedule.stages):
            turn = getattr(schedule, direction)(tick, stage)
            if turn.is_due:
                whole = turn.part * schedule.stages + stage
                assert (whole, turn.microbatch) not in found
                found[whole, turn.microbatch] = tick
    return found
