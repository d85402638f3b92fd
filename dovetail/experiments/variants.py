"""Variants of the published sizes: the same model with features.

A variant is a list of features with arguments, so it is the same for every family. Families to
which a feature does not apply are excluded; a test compares this with what the features declare.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dovetail.config import apply_modifier
from dovetail.experiments.published import published_sizes
from dovetail.experiments.registry import experiment, find_experiment

if TYPE_CHECKING:
    from dovetail.trainer import Trainer

WITH_EXPERTS = ("deepseek-v3", "gpt-oss", "mixtral", "qwen3-moe")


@dataclass(frozen=True)
class Variant:
    """A list of features for any published size.

    Attributes:
        about: one line of help, which follows that of the size.
        changes: as `--with` takes them, in order.
        excluded: the families to which it does not apply.
    """

    about: str
    changes: tuple[str, ...]
    excluded: tuple[str, ...] = ()


VARIANTS: dict[str, Variant] = {
    "lora": Variant("fine-tuned with LoRA", ("lora:rank=16,alpha=32.0",)),
    "moe": Variant("with a mixture of experts", ("moe",), WITH_EXPERTS),
    "fp8": Variant("with FP8 matmuls", ("fp8",)),
    "muon": Variant("trained with Muon", ("optimizer:name=muon",)),
    "mup": Variant("in maximal update parametrization", ("mup",)),
}


def _varied(name: str, form: str, changes: tuple[str, ...]) -> Trainer.Config:
    config = getattr(find_experiment(name), form)()
    return functools.reduce(apply_modifier, changes, config)


for _name, _size in published_sizes().items():
    for _suffix, _variant in VARIANTS.items():
        if _size.family not in _variant.excluded:
            experiment(
                f"{_name}-{_suffix}",
                f"{_size.about}, {_variant.about}",
                tiny=functools.partial(_varied, _name, "tiny", _variant.changes),
                variant_of=_name,
                changes=_variant.changes,
                family=_size.family,
            )(functools.partial(_varied, _name, "config", _variant.changes))
