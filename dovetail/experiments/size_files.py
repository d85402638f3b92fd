"""Published sizes of model families, read from files. Listing them loads no JAX.

`<family>.toml` has a table per size: the values of its config.json, the known number of
parameters, and the training recipe. `like` inherits from another size. Language models have no
corpus: a user names one with `--data` or `input.corpus`. Their tiny forms train on Python's
standard library. A family of another modality has an input of its own (`ModelFamily.input`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.config import ConfigError, did_you_mean
from dovetail.experiments.registry import experiment

if TYPE_CHECKING:
    from dovetail.models import ModelFamily
    from dovetail.trainer import Trainer


@dataclass(frozen=True)
class Recipe:
    """The training recipe of a size; `published` says whether its authors stated it.

    Common to all: AdamW with b1 0.9 and b2 0.95, weight decay 0.1, clipping at 1, and a cosine
    schedule that ends at `end_fraction` of the peak. Inputs that are no sequences have no
    `sequence_length`.
    """

    batch_size: int
    steps: int
    peak: float
    warmup_steps: int
    sequence_length: int | None = None
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


def register_sizes(path: str | Path) -> dict[str, PublishedSize]:
    """Registers published sizes as experiments, and returns them by name.

    A package may have sizes of its own, of its own families or of Dovetail's:

        register_sizes(Path(__file__).parent / "sizes")

    Args:
        path: a file `<family>.toml`, or a folder of such files.
    """
    found: dict[str, PublishedSize] = {}
    for file in _files(Path(path)):
        for name, size in read_sizes(file).items():
            make = experiment(
                name,
                size.about,
                tiny=functools.partial(_tiny, size),
                family=size.family,
                source=str(file),
            )
            make(functools.partial(_config, size))
            found[name] = size
    return found


def read_sizes(file: Path) -> dict[str, PublishedSize]:
    """Reads the sizes of one family from `<family>.toml`; a mistake is a ConfigError."""
    import tomllib

    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}.") from error
    return {name: _size(file, tables, name) for name in tables}


def _files(path: Path) -> list[Path]:
    files = sorted(path.glob("*.toml")) if path.is_dir() else [path]
    if not files:
        raise ConfigError(f"{path}: expected files <family>.toml of published sizes, found none.")
    return files


def _size(file: Path, tables: dict[str, Any], name: str) -> PublishedSize:
    try:
        table = _resolved(tables, name)
        recipe = Recipe(**table.pop("recipe"))
        return PublishedSize(family=file.stem, recipe=recipe, **table)
    except (KeyError, TypeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ConfigError(
            f"{file}: [{name}]: {what}. A size has about, parameters, values and recipe "
            f"({', '.join(field.name for field in fields(Recipe))}), or is `like` another."
        ) from error


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
    from dovetail.data import UnsetCorpus
    from dovetail.models import CausalLM

    config: Any = _experiment(size.family, size.values, size.recipe)
    config.model.dtype = "bfloat16"
    if _family(size.family).input is None:
        config.input.corpus = UnsetCorpus.Config()
    if size.recipe.z_loss or isinstance(config.model, CausalLM.Config):
        config.model.loss.z_loss = size.recipe.z_loss
    return config


def _tiny(size: PublishedSize) -> Trainer.Config:
    """Returns a few steps of the family's tiny model."""
    family = _family(size.family)
    recipe = Recipe(batch_size=8, steps=4, peak=1e-3, warmup_steps=1)
    if family.input is not None:
        return _experiment(size.family, family.tiny(), recipe)
    values = family.tiny() | {"vocab_size": 264}  # enough for bytes
    return _experiment(size.family, values, replace(recipe, sequence_length=32))


def _family(name: str) -> ModelFamily:
    from dovetail.models import families

    if name not in families():
        raise ConfigError(
            f"{name}.toml: there is no model family {name!r}. {did_you_mean(name, families())}"
        )
    return families()[name]


def _experiment(name: str, values: dict[str, Any], recipe: Recipe) -> Trainer.Config:
    from dovetail.learner import AdamW, CosineSchedule, Learner
    from dovetail.trainer import HeldOutLoss, Trainer

    family = _family(name)
    model = family.from_hf(values)
    source = _input(family, model, recipe)
    evaluation = HeldOutLoss.Config(every=1000, num_batches=16)
    return Trainer.Config(
        model=model,
        input=source,
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
        evaluators={"held_out": evaluation} if hasattr(source.builds(), "held_out") else {},
    )


def _input(family: ModelFamily, model: Any, recipe: Recipe) -> Any:
    """Returns the input of a model: tokens, unless its family has another one."""
    from dovetail.data import ByteTokenizer, TokenInput

    config: Any = TokenInput.Config(tokenizer=ByteTokenizer.Config())
    if family.input is not None:
        config = family.input(model)
    elif recipe.sequence_length is None:
        raise ConfigError(f"{family.name}.toml: a recipe of token sequences has a sequence_length.")
    config.set(batch_size=recipe.batch_size)
    if recipe.sequence_length is not None:
        config.set(sequence_length=recipe.sequence_length)
    return config
