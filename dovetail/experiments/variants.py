"""Variants of the published sizes: the same model, trained or adapted in another way.

A variant is nothing but features with their settings, so it is the same for every family. Where a
feature makes no sense for a family, the family is left out; a test holds the lists to what the
features themselves declare.
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
    """A way to train a published size.

    Attributes:
        about: what it is for, after the size's own words.
        changes: as `--with` takes them, in order.
        leaves_out: the families for which it makes no sense.
    """

    about: str
    changes: tuple[str, ...]
    leaves_out: tuple[str, ...] = ()


VARIANTS: dict[str, Variant] = {
    "lora": Variant("with adapters alone trained", ("lora:rank=16,alpha=32.0",)),
    "moe": Variant("with experts in the place of feed-forwards", ("moe",), WITH_EXPERTS),
    "fp8": Variant("in products of 8-bit floats", ("fp8",)),
    "muon": Variant("trained with Muon", ("optimizer:name=muon",)),
    "mup": Variant("with learning rates that hold at any width", ("mup",)),
}


def _varied(name: str, form: str, changes: tuple[str, ...]) -> Trainer.Config:
    config = getattr(find_experiment(name), form)()
    return functools.reduce(apply_modifier, changes, config)


for _name, _size in published_sizes().items():
    for _suffix, _variant in VARIANTS.items():
        if _size.family not in _variant.leaves_out:
            experiment(
                f"{_name}-{_suffix}",
                f"{_size.about}, {_variant.about}",
                tiny=functools.partial(_varied, _name, "tiny", _variant.changes),
                variant_of=_name,
                changes=_variant.changes,
            )(functools.partial(_varied, _name, "config", _variant.changes))
