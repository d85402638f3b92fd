"""Changing a mixture in the middle of a run: the batches before the change must stay the same.

Adding a source, or dropping one, is a stage that begins at the step that the run continues from, or
later. The order within a source depends on the source's name alone, so nothing else moves.
"""

from __future__ import annotations

from typing import Any

from dovetail.config import ConfigError

_FIXED = (
    "tokenizer",
    "sequence_length",
    "batch_size",
    "packing",
    "transforms",
    "seed",
    "temperature",
    "block",
)


def check_same_batches(before: Any, now: Any, batches: int) -> None:
    """Raises a ConfigError unless both configs give the same first batches.

    Args:
        before: the config of the run's input until now.
        now: the config that it is to continue with.
        batches: how many batches the run has taken.
    """
    if type(before) is not type(now):
        raise ConfigError(
            f"input: the run has another kind of input ({before.display_name()}), so its data "
            "cannot change. Start another run with --with from-run:path=RUN."
        )
    for name in _FIXED:
        if getattr(before, name) != getattr(now, name):
            raise ConfigError(
                f"input.{name}: it cannot change in the middle of a run ({getattr(before, name)} "
                f"there, {getattr(now, name)} here). Only sources and later stages can."
            )
    if now.temperature is not None and set(before.sources) != set(now.sources):
        raise ConfigError(
            "input.temperature: with it the shares depend on all sources, so none can be added or "
            "dropped in the middle of a run. Write the weights of the sources instead."
        )
    stages = _stages(before, batches), _stages(now, batches)
    if stages[0] != stages[1]:
        raise ConfigError(
            f"input: the run has taken {batches} batches, and the new weights would change them "
            f"({_first_difference(*stages)}). Leave the weights as they are, and add a stage that "
            f"begins at {batches} or later, such as input.stages.next.start={batches}."
        )
    for name in {name for _, weights in stages[0] for name, weight in weights.items() if weight}:
        if before.sources[name].corpus != now.sources[name].corpus:
            raise ConfigError(
                f"input.sources.{name}.corpus: the run has trained on this source, so its corpus "
                "cannot change. Add the new corpus as a source of another name, and a stage that "
                "uses it."
            )


def _stages(config: Any, batches: int) -> list[tuple[int, dict[str, float]]]:
    """Returns the weights that were in force, without those of unused sources."""
    if not batches:
        return []
    return [
        (start, {name: weight for name, weight in weights.items() if weight})
        for start, weights in config.build().stage_weights()
        if start < batches
    ]


def _first_difference(
    before: list[tuple[int, dict[str, float]]], now: list[tuple[int, dict[str, float]]]
) -> str:
    for index in range(max(len(before), len(now))):
        there, here = before[index : index + 1], now[index : index + 1]
        if there != here:
            return f"{_text(there)} there, {_text(here)} here"
    return ""


def _text(stage: list[tuple[int, dict[str, float]]]) -> str:
    if not stage:
        return "no stage"
    start, weights = stage[0]
    shown = " ".join(f"{name}={weight:g}" for name, weight in weights.items())
    return f"{shown} from batch {start}"
