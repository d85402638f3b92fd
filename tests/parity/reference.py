"""Tiny models of transformers with weights by formula, and ours with the same weights."""

from __future__ import annotations

import functools
import tempfile
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from safetensors.numpy import load_file, save_file

from dovetail.models import ModelFamily, families
from dovetail.module import Module
from tests.models.formula import tensor, to_parameters

transformers.utils.logging.disable_progress_bar()


@dataclass(frozen=True)
class Pair:
    """The same model twice."""

    family: ModelFamily
    theirs: Any
    ours: Module
    params: dict[str, Any]
    variables: dict[str, Any]


@functools.cache
def pair(name: str) -> Pair:
    """Makes their model, and ours of its config.json and tensors."""
    family = families()[name]
    with tempfile.TemporaryDirectory() as folder:
        state = write_model(family, folder)
        theirs = load(family, folder)
    ours = family.from_hf(theirs.config.to_dict()).build()
    params, variables = to_parameters(family, ours, state)
    return Pair(family, theirs, ours, params, variables)


def write_model(family: ModelFamily, folder: str, **changes: Any) -> dict[str, Any]:
    """Writes a tiny model as transformers does, with weights by formula; returns its tensors."""
    torch.manual_seed(0)
    settings = transformers.AutoConfig.for_model(family.model_type, **family.tiny(), **changes)
    model = getattr(transformers, family.architecture)(settings)
    model.save_pretrained(folder)
    file = f"{folder}/model.safetensors"
    state = {name: tensor(name, old.shape) for name, old in load_file(file).items()}
    save_file(state, file, metadata={"format": "pt"})
    return state


def load(family: ModelFamily, folder: str) -> Any:
    """Loads a model as anybody would."""
    kind = getattr(transformers, family.architecture)
    return kind.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
