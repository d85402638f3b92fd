"""The memory of each further microbatch: with 1F1B only its rows, with GPipe its activation."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from dovetail.config import apply_overrides
from dovetail.experiments import experiments
from dovetail.learner import GPipe, OneForwardOneBackward
from dovetail.parallel import MeshLayout

STAGES, ROWS, LENGTH, WIDTH = 4, 2, 128, 64
MANY = 32
# What a stage sends to the next for a microbatch, in float32.
HANDED_ON = ROWS * LENGTH * WIDTH * 4
# Tokens, targets, positions, segments and weights of a microbatch, four bytes each.
MICROBATCH = 5 * ROWS * LENGTH * 4


def growth(schedule: Any, few: int, repeats: int = 1) -> float:
    """Returns how many bytes a device needs for each microbatch beyond a few."""
    sizes = [temporaries(schedule, count, repeats) for count in (few, MANY)]
    return (sizes[1] - sizes[0]) / (MANY - few)


def temporaries(schedule: Any, microbatches: int, repeats: int) -> int:
    """Returns the bytes that a step needs on each device beside its arguments and results."""
    sizes = {
        "input.batch_size": ROWS * microbatches,
        "input.sequence_length": LENGTH,
        "model.width": WIDTH,
        "model.decoder.stack.num_layers": STAGES * 2,
    }
    config = apply_overrides(
        experiments()["tiny-lm"].tiny(), [f"{path}={value}" for path, value in sizes.items()]
    )
    config.set(writers={}, evaluators={}, mesh=MeshLayout.Config(pipeline=STAGES, fsdp=1))
    config.learner.gradients = schedule.Config(microbatches=microbatches, repeats=repeats)
    program = config.build().program(tuple(jax.devices()[:STAGES]))
    return int(program.lowered.compile().memory_analysis().temp_size_in_bytes)


@pytest.mark.sweep
def test_1f1b_saves_no_more_for_more_microbatches() -> None:
    # Its rows, put in order, are all that a microbatch adds: 1.2 times its size was measured.
    assert growth(OneForwardOneBackward, few=8) < 1.5 * MICROBATCH


@pytest.mark.slow
def test_interleaved_1f1b_saves_no_more_for_more_microbatches() -> None:
    # A part may have begun three microbatches a stage, so that fewer than 12 would be held in all.
    assert growth(OneForwardOneBackward, few=16, repeats=2) < 1.5 * MICROBATCH


@pytest.mark.sweep
def test_gpipe_saves_the_output_of_each_microbatch() -> None:
    assert HANDED_ON < growth(GPipe, few=8) < 1.5 * HANDED_ON
