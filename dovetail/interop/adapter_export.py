"""Exports only the LoRA adapters of a run, as a folder that `peft` loads onto the base model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.config import ConfigError
from dovetail.interop.hf_export import ExportReport, FamilyModel, in_family, number_type
from dovetail.interop.model_folders import new_folder, refuse_existing, write_json
from dovetail.interop.run_weights import MergeableModule, ModelSource, mergeable_modules
from dovetail.layers import LAYER_AXES, HasLowRankUpdate, LowRankUpdate
from dovetail.module import ForeignTensor, Spec, Transpose, parameter_specs, variable_specs
from dovetail.runtime import SafetensorsWriter

_ADVICE = "Export the merged model instead: leave out --adapter."
_WEIGHT = "weight"  # the parameter that a low-rank update is added to


@dataclass(frozen=True)
class LoraAdapter:
    """The adapter of one linear layer of transformers: the name of its module, and the update."""

    name: str
    update: LowRankUpdate

    @property
    def rank(self) -> int:
        """The rank."""
        return int(self.update.down.shape[-1])

    @property
    def alpha(self) -> float:
        """PEFT's alpha: the scale times the rank."""
        return self.update.scale * self.rank


def export_adapter(
    source: ModelSource, target: Path, *, dtype: str | None = None, family: str | None = None
) -> ExportReport:
    """Exports the adapters of a model into a new folder, which appears when it is complete.

    Args:
        source: the model; `Run.model_source()` returns that of a run.
        target: the new folder.
        dtype: the dtype to write; None keeps the stored dtypes.
        family: the family whose names to use; None takes one that expresses the model exactly, the
            imported one first.
    """
    refuse_existing(target)
    found = in_family(source, family)
    modules = mergeable_modules(source.model)
    if not modules:
        raise ConfigError(
            f"--adapter: the model of {source.name} has no adapters. Train with `--with "
            "lora:rank=8`, or leave out --adapter."
        )
    base = _base_model(source)
    names = _module_names(found, modules)
    _check_base_is_frozen(found, modules)
    weights = source.weights
    adapters = []
    for wrapper in modules:
        read_slice = weights.reader(wrapper.own_paths())
        for index, name in names[wrapper.path].items():
            update = wrapper.module.low_rank_update(wrapper.own_arrays(index, read_slice))
            adapters.append(LoraAdapter(name, update))
    arrays = _arrays(adapters, number_type(dtype) if dtype else None)
    with new_folder(target) as temporary:
        sizes = {name: (array.dtype, array.shape) for name, array in arrays.items()}
        path = temporary / "adapter_model.safetensors"
        with SafetensorsWriter(path, sizes, {"format": "pt"}) as writer:
            for name, array in arrays.items():
                writer.write(name, array, ())
        config = _adapter_config(adapters, found.tensors) | base
        write_json(temporary / "adapter_config.json", config)
    size = sum(array.nbytes for array in arrays.values())
    return ExportReport(target, found.family.name, weights.step, len(arrays), size, False)


def _base_model(source: ModelSource) -> dict[str, Any]:
    """Returns the keys of adapter_config.json that name the base model."""
    if source.base is None:
        raise ConfigError(
            f"--adapter: {source.name} was not started from another run, so its base model is not "
            f"available to others. {_ADVICE}"
        )
    origin = source.base.get("from")
    name, _, revision = (origin or "").removeprefix("hub:").partition("@")
    if not origin or not origin.startswith("hub:"):
        name, revision = origin, ""
    return {"base_model_name_or_path": name, "revision": revision or None}


def _check_base_is_frozen(found: FamilyModel, around: list[MergeableModule]) -> None:
    """Raises ConfigError if base weights were trained too: the adapters alone would be wrong."""
    adapters = {path for wrapper in around for path in wrapper.own_paths()}
    model = found.source.model
    written = {one.path for tensor in found.tensors.values() for one in tensor.all_slices}
    trained = sorted((found.source.trained - adapters) | (variable_specs(model).keys() & written))
    if trained:
        raise ConfigError(
            f"--adapter: {trained[0]} is not an adapter, but was trained ({len(trained)} such), so "
            f"the adapters alone are not this model. {_ADVICE}"
        )


def _module_names(
    found: FamilyModel, around: list[MergeableModule]
) -> dict[str, dict[tuple[int, ...], str]]:
    """Returns the name of the adapted module in transformers, by wrapper path and layer index."""
    specs = parameter_specs(found.plain)
    weights = {f"{wrapper.path}/{_WEIGHT}" for wrapper in around}
    names: dict[str, dict[tuple[int, ...], str]] = {wrapper.path: {} for wrapper in around}
    for name, tensor in found.tensors.items():
        for one in tensor.all_slices:
            if one.path in weights:
                _check_plain(name, tensor, one.path, specs[one.path])
                path = one.path.removesuffix(f"/{_WEIGHT}")
                names[path][one.index] = name.removesuffix(".weight")
    for wrapper in around:
        if not issubclass(type(wrapper.module), HasLowRankUpdate) or not names[wrapper.path]:
            kind = type(wrapper.module).__name__
            raise ConfigError(
                f"--adapter: {wrapper.path} is a {kind}, which PEFT does not support. {_ADVICE}"
            )
    return names


def _check_plain(name: str, tensor: ForeignTensor, path: str, spec: Spec) -> None:
    """Raises ConfigError if a tensor is not the weight of a single torch Linear."""
    problem = ""
    if any(axis not in LAYER_AXES for axis in spec.axes[: spec.stacked]):
        problem = f"holds experts of {path}, which transformers stores stacked"
    elif len(tensor.slices[0]) > 1:
        joined = ", ".join(one.path.removesuffix(f"/{_WEIGHT}") for one in tensor.slices[0])
        problem = f"fuses several linear layers ({joined}), each with its own adapter"
    elif tensor.lead or tensor.transforms != (Transpose(),) or not name.endswith(".weight"):
        problem = f"holds {path}, but not as the weight of a torch Linear"
    if problem:
        raise ConfigError(
            f"--adapter: {name} {problem}; PEFT adapts single linear layers. {_ADVICE}"
        )


def _arrays(adapters: list[LoraAdapter], dtype: np.dtype[Any] | None) -> dict[str, np.ndarray]:
    """Returns the tensors under PEFT's names, transposed: a torch Linear stores (out, in)."""
    arrays: dict[str, np.ndarray] = {}
    for adapter in adapters:
        name = f"base_model.model.{adapter.name}"
        for matrix, value in (("lora_A", adapter.update.down), ("lora_B", adapter.update.up)):
            array = np.ascontiguousarray(np.swapaxes(value, -1, -2))
            arrays[f"{name}.{matrix}.weight"] = array.astype(dtype or array.dtype, copy=False)
    return arrays


def _adapter_config(
    adapters: list[LoraAdapter], tensors: Mapping[str, ForeignTensor]
) -> dict[str, Any]:
    """Returns adapter_config.json: the most common rank and alpha, and the exceptions."""
    rank = Counter(adapter.rank for adapter in adapters).most_common(1)[0][0]
    alpha = Counter(adapter.alpha for adapter in adapters).most_common(1)[0][0]
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": _number(alpha),
        "rank_pattern": {each.name: each.rank for each in adapters if each.rank != rank},
        "alpha_pattern": {
            each.name: _number(each.alpha) for each in adapters if each.alpha != alpha
        },
        "target_modules": _targets({adapter.name for adapter in adapters}, tensors),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }


def _targets(adapted: set[str], tensors: Mapping[str, ForeignTensor]) -> list[str]:
    """Names the adapted modules: by the last component if all modules of that name are adapted."""
    modules = {name.removesuffix(".weight") for name in tensors if name.endswith(".weight")}
    partial = {name.rpartition(".")[2] for name in modules - adapted}
    last = {name: name.rpartition(".")[2] for name in adapted}
    return sorted({name if short in partial else short for name, short in last.items()})


def _number(value: float) -> float:
    """Converts an integral float to an int."""
    return int(value) if float(value).is_integer() else value
