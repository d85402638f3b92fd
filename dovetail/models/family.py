"""ModelFamily: converts between a Hugging Face format and our configs and parameters.

A family is data and a few functions, so `interop` reads and writes any family without knowing
which. To add a family, define one in a file and register it. Most are language models; a family of
another modality also names the input that its models train on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.config import ConfigOf, Registry
from dovetail.module import Module, WeightRule


@dataclass(frozen=True, kw_only=True)
class ModelFamily:
    """A model family and its Hugging Face format.

    Attributes:
        name: our name, such as "llama".
        model_type: the `model_type` in config.json.
        architecture: the class in `transformers`.
        from_hf: converts a config.json to a model config, such as `CausalLM.Config`. Raises a
            ConfigError that names the key and value of an unsupported setting.
        to_hf: the inverse. Raises a ConfigError if the format cannot express the model.
        weights: the weight mapping. Rules that match no parameter of a model are unused.
        ignored: fnmatch patterns of tensors to skip, such as "*.rotary_emb.inv_freq".
        tiny: returns a tiny config.json with every optional setting of the family, for tests.
        input: returns the config of the input that a model trains on, given the model's config:
            images, or pairs of texts. It has a field `batch_size`. None for language models, whose
            input is tokens.
    """

    name: str
    model_type: str
    architecture: str
    from_hf: Callable[[Mapping[str, Any]], Module.Config[Any]]
    to_hf: Callable[[Any], dict[str, Any]]
    weights: tuple[WeightRule, ...]
    ignored: tuple[str, ...] = ()
    tiny: Callable[[], dict[str, Any]]
    input: Callable[[Any], ConfigOf[Any]] | None = None


_families: Registry[ModelFamily] = Registry("family", "dovetail.models")
_by_model_type: Registry[ModelFamily] = Registry(
    "family for",
    "dovetail.models",
    advice="To add a family, write one file: see dovetail.models.ModelFamily and --import.",
)


def register_family(family: ModelFamily) -> ModelFamily:
    """Registers a family and returns it."""
    source = family.from_hf.__module__
    _by_model_type.register(family.model_type, family, source)
    return _families.register(family.name, family, source)


def families() -> dict[str, ModelFamily]:
    """Returns all families by name: those of this subpackage and those registered elsewhere."""
    return _families.all()


def find_family(model_type: str) -> ModelFamily:
    """Returns the family of a `model_type`; an unknown one is an error."""
    return _by_model_type.find(model_type, "model_type")
