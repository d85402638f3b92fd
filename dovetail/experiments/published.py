"""The published sizes of every model family, as experiments. Listing them loads no JAX.

`sizes/<family>.toml` has a table per size: the values of its config.json, the known number of
parameters, and the training recipe. `like` inherits from another size. The corpus is Python's
standard library, which every machine has; set `input.corpus` to train on another.
"""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.experiments.registry import experiment

if TYPE_CHECKING:
    from dovetail.trainer import Trainer

_FOLDER = Path(__file__).parent / "sizes"


@dataclass(frozen=True)
class Recipe:
    """The training recipe of a size; `published` says whether its authors stated it.

    Common to all: AdamW with b1 0.9 and b2 0.95, weight decay 0.1, clipping at 1, and a cosine
    schedule that ends at `end_fraction` of the peak.
    """

    sequence_length: int
    batch_size: int
    steps: int
    peak: float
    warmup_steps: int
    end_fraction: float = 0.1
    epsilon: float = 1e-8
    z_loss: float = 0.0
    published: bool = True


@dataclass(frozen=True)
class PublishedSize:
    """One published model of a family."""

    family: str
    about: str
    parameters: int
    values: dict[str, Any]
    recipe: Recipe


@functools.cache
def published_sizes() -> dict[str, PublishedSize]:
    """Returns every published size by name."""
    found: dict[str, PublishedSize] = {}
    for file in sorted(_FOLDER.glob("*.toml")):
        tables = tomllib.loads(file.read_text())
        for name in tables:
            table = _resolved(tables, name)
            recipe = Recipe(**table.pop("recipe"))
            found[name] = PublishedSize(family=file.stem, recipe=recipe, **table)
    return found


def _resolved(tables: dict[str, Any], name: str) -> dict[str, Any]:
    table = dict(tables[name])
    base = table.pop("like", None)
    if base is None:
        return table
    inherited = _resolved(tables, base)
    merged = {key: inherited[key] | table.get(key, {}) for key in ("values", "recipe")}
    return {**inherited, **table, **merged}


def _config(size: PublishedSize) -> Trainer.Config:
    """Returns the experiment of a size: bfloat16 compute over float32 parameters."""
    recipe = size.recipe
    config = _experiment(size.family, size.values, recipe)
    config.model.dtype = "bfloat16"
    config.model.loss.z_loss = recipe.z_loss
    return config


def _tiny(size: PublishedSize) -> Trainer.Config:
    """Returns a few steps of the family's tiny model."""
    from dovetail.models import families

    recipe = Recipe(sequence_length=32, batch_size=8, steps=4, peak=1e-3, warmup_steps=1)
    values = families()[size.family].tiny() | {"vocab_size": 264}  # enough for bytes
    return _experiment(size.family, values, recipe)


def _experiment(family: str, values: dict[str, Any], recipe: Recipe) -> Trainer.Config:
    from dovetail.data import ByteTokenizer, TokenInput
    from dovetail.learner import AdamW, CosineSchedule, Learner
    from dovetail.models import families
    from dovetail.trainer import HeldOutLoss, Trainer

    return Trainer.Config(
        model=families()[family].from_hf(values),
        input=TokenInput.Config(
            tokenizer=ByteTokenizer.Config(),
            sequence_length=recipe.sequence_length,
            batch_size=recipe.batch_size,
        ),
        learner=Learner.Config(
            optimizer=AdamW.Config(eps=recipe.epsilon),
            schedule=CosineSchedule.Config(
                peak=recipe.peak,
                end_fraction=recipe.end_fraction,
                warmup_steps=recipe.warmup_steps,
            ),
            weight_decay=0.1,
        ),
        steps=recipe.steps,
        evaluators={"held_out": HeldOutLoss.Config(every=1000, num_batches=16)},
    )


for _name, _size in published_sizes().items():
    experiment(_name, _size.about, tiny=functools.partial(_tiny, _size), family=_size.family)(
        functools.partial(_config, _size)
    )
