"""Pipeline schedules: every chunk runs once, in order, with few microbatches in flight."""

from __future__ import annotations

import pytest

from dovetail.config import ConfigError
from dovetail.parallel.pipeline_schedule import PipelineSchedule

SIZES = [(2, 2, 1), (4, 8, 1), (4, 3, 1), (3, 7, 1), (2, 4, 2), (4, 8, 3), (3, 9, 2)]


@pytest.mark.parametrize(("stages", "microbatches", "repeats"), SIZES)
def test_chunks_run_once_and_in_order(stages: int, microbatches: int, repeats: int) -> None:
    schedule = PipelineSchedule(stages, microbatches, repeats)
    forward, backward = slot_ticks(schedule, "forward"), slot_ticks(schedule, "backward")
    wanted = {(p, m) for p in range(stages * repeats) for m in range(microbatches)}
    assert forward.keys() == backward.keys() == wanted
    for chunk, microbatch in wanted:
        if chunk:
            before = forward[chunk - 1, microbatch]
            assert forward[chunk, microbatch] == before + 1, "it arrives at the tick of its slot"
            assert backward[chunk - 1, microbatch] == backward[chunk, microbatch] + 1
        assert backward[chunk, microbatch] >= forward[chunk, microbatch]
    assert max(backward.values()) == schedule.ticks - 1
    assert max(forward.values()) == schedule.forward_ticks - 1


@pytest.mark.parametrize(("stages", "microbatches", "repeats"), SIZES)
def test_microbatches_in_flight_have_distinct_buffers(
    stages: int, microbatches: int, repeats: int
) -> None:
    schedule = PipelineSchedule(stages, microbatches, repeats)
    forward, backward = slot_ticks(schedule, "forward"), slot_ticks(schedule, "backward")
    for (chunk, microbatch), begun in forward.items():
        for other in range(microbatches):
            begun_later = begun < forward[chunk, other] <= backward[chunk, microbatch]
            if begun_later:
                assert other % schedule.max_in_flight != microbatch % schedule.max_in_flight


def test_the_number_in_flight_is_bounded() -> None:
    assert PipelineSchedule(4, 8).max_in_flight == PipelineSchedule(4, 64).max_in_flight == 8
    assert (
        PipelineSchedule(4, 16, 2).max_in_flight == PipelineSchedule(4, 64, 2).max_in_flight == 12
    )


def test_interleaving_makes_the_bubble_smaller() -> None:
    assert PipelineSchedule(4, 8).bubble == pytest.approx(6 / 14)
    # Ticks are half as long with two repeats.
    assert PipelineSchedule(4, 8, 2).bubble < PipelineSchedule(4, 8).bubble


def test_groups_must_be_complete() -> None:
    with pytest.raises(ConfigError, match="6 do not divide into groups of 4"):
        PipelineSchedule(4, 6, 2)


def slot_ticks(schedule: PipelineSchedule, direction: str) -> dict[tuple[int, int], int]:
    """Returns the tick of each (chunk of the model, microbatch)."""
    found = {}
    for tick in range(schedule.ticks):
        for stage in range(schedule.stages):
            slot = getattr(schedule, direction)(tick, stage)
            if slot.is_active:
                index = slot.chunk * schedule.stages + stage
                assert (index, slot.microbatch) not in found
                found[index, slot.microbatch] = tick
    return found
