"""Family: what links a foreign format to our configs and parameters. One object a model family.

A family is data and two functions between configs, so that `interop` reads and writes any of them
without knowing which. Defining one and registering it is all that a new family takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.config import ConfigError, did_you_mean, import_submodules
from dovetail.models.causal_lm import CausalLM
from dovetail.module import Weight


@dataclass(frozen=True, kw_only=True)
class Family:
    """A model family and its Hugging Face format.

    Attributes:
        name: ours, such as "llama".
        model_type: what `config.json` calls it.
        architecture: the class that `transformers` loads it with.
        from_hf: makes the model's config of a `config.json`; raises a ConfigError that names the
            key and value of what we lack.
        to_hf: the way back; raises a ConfigError where the format cannot say the model.
        weights: the rules of the mapping. Those that match no parameter of a model are unused.
        ignored: patterns (fnmatch) of tensors that carry nothing, "*.rotary_emb.inv_freq" for one.
        tiny: makes a tiny `config.json` with every quirk of the family switched on, for tests.
    """

    name: str
    model_type: str
    architecture: str
    from_hf: Callable[[Mapping[str, Any]], CausalLM.Config]
    to_hf: Callable[[CausalLM.Config], dict[str, Any]]
    weights: tuple[Weight, ...]
    ignored: tuple[str, ...] = ()
    tiny: Callable[[], dict[str, Any]]


_families: dict[str, Family] = {}


def register_family(family: Family) -> Family:
    """Makes a family known by its name; returns it."""
    for known in _families.values():
        same_maker = known.from_hf.__module__ == family.from_hf.__module__
        if not same_maker and family.name == known.name:
            raise ConfigError(f"There are two families named {family.name!r}. Rename one.")
        if not same_maker and family.model_type == known.model_type:
            raise ConfigError(
                f"The families {known.name!r} and {family.name!r} both read model_type "
                f"{family.model_type!r}. Leave one out."
            )
    _families[family.name] = family
    return family


def families() -> dict[str, Family]:
    """Returns all families by name: those of this room's files, and what others registered."""
    import_submodules("dovetail.models")
    return dict(sorted(_families.items()))


def find_family(model_type: str) -> Family:
    """Returns the family of a `model_type`; an unknown one is an error that names the nearest."""
    by_type = {family.model_type: family for family in families().values()}
    if model_type not in by_type:
        raise ConfigError(
            f"model_type: there is no family for {model_type!r}. "
            f"{did_you_mean(model_type, by_type)} "
            "A family of your own is one file: see dovetail.models.Family and --import."
        )
    return by_type[model_type]
