"""How often a run sees the same data: a word of warning where that is surely a mistake."""

from __future__ import annotations

from dovetail.data import TRAIN, PreparedData

# Language models gain little from a fifth pass over their data; nobody means fifty.
_MANY_PASSES = 50


def repetition_warning(prepared: PreparedData, tokens_per_step: int, steps: int) -> str | None:
    """Returns one line if a run repeats its data absurdly often, and None otherwise."""
    split = prepared.splits.get(TRAIN)
    if split is None or not split.tokens:
        return None
    passes = steps * tokens_per_step / split.tokens
    if split.tokens >= tokens_per_step and passes <= _MANY_PASSES:
        return None
    return (
        f"warning: the data has {split.tokens:,} tokens to train on and a step takes "
        f"{tokens_per_step:,}, so that {steps:,} steps are {passes:,.0f} passes over it; the model "
        "will learn it by heart. Add text, or take fewer steps or smaller batches."
    )
