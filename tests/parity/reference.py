"""Random tiny models of transformers, and ours with the same weights."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
import transformers

from dovetail.models import Family, families
from dovetail.module import Module, match_weights, parameter_specs, variable_specs


@dataclass(frozen=True)
class Pair:
    """The same model twice."""

    family: Family
    theirs: Any
    ours: Module
    params: dict[str, Any]
    variables: dict[str, Any]


@functools.cache
def pair(name: str) -> Pair:
    """Makes their random model, and ours of its config.json and tensors."""
    family = families()[name]
    theirs = random_model(family)
    config = family.from_hf(hub_values(theirs))
    ours = config.build()
    params, variables = taken_over(family, ours, state_of(theirs))
    return Pair(family, theirs, ours, params, variables)


def random_model(family: Family) -> Any:
    """Returns a tiny model with random weights, norms and biases among them."""
    torch.manual_seed(0)
    settings = transformers.AutoConfig.for_model(family.model_type, **family.tiny())
    settings._attn_implementation = "eager"
    model = getattr(transformers, family.architecture)(settings).eval()
    with torch.no_grad():
        saved = model.state_dict()  # buffers that are constants are not saved
        for name, parameter in [*model.named_parameters(), *model.named_buffers()]:
            if name in saved and parameter.is_floating_point():
                centre = 1.0 if parameter.ndim == 1 and "norm" in name else 0.0
                parameter.normal_(centre, 0.2)
    return model.float()


def hub_values(model: Any) -> dict[str, Any]:
    """Returns what its config.json would say."""
    return dict(model.config.to_dict())


def state_of(model: Any) -> dict[str, np.ndarray]:
    """Returns its tensors by the names that its file would have, tied ones once."""
    import tempfile

    from safetensors.numpy import load_file

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(f"{folder}/model.safetensors")


def taken_over(
    family: Family, ours: Module, state: dict[str, np.ndarray]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns our parameters and variables, filled by the family's mapping; none is left over."""
    specs: dict[str, Any] = {**parameter_specs(ours), **variable_specs(ours)}
    arrays = {path: np.full(spec.shape, np.nan, spec.dtype) for path, spec in specs.items()}
    tensors = match_weights(family.weights, specs)
    assert set(tensors) == set(state), sorted(set(tensors) ^ set(state))
    for name, tensor in tensors.items():
        assert tensor.shape == state[name].shape, name
        for place, slots in tensor.elements():
            for slot, value in zip(slots, tensor.to_ours(state[name][place]), strict=True):
                arrays[slot.path][slot.index] = value
    assert all(np.isfinite(array).all() for array in arrays.values())
    params = {path: jnp.asarray(arrays[path]) for path in parameter_specs(ours)}
    return params, {path: jnp.asarray(arrays[path]) for path in variable_specs(ours)}
