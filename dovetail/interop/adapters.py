"""The adapters of a run alone, as a folder that `peft` loads onto the model they belong to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.config import ConfigError
from dovetail.interop.exporting import Exported, RunModel, json_file, number_type, run_model
from dovetail.interop.folders import refuse_existing, whole_folder
from dovetail.interop.merging import Wrapper, wrappers
from dovetail.interop.stored import stored_model
from dovetail.layers import LAYER_AXES, AddsLowRank, LowRank
from dovetail.learner import select_trained
from dovetail.module import Spec, Tensor, Transpose, parameter_specs, variable_specs
from dovetail.runtime import RunFolder, SafetensorsWriter

_ADVICE = "Export the merged model instead: leave out --adapter."
_WEIGHT = "weight"  # what a wrapper that adds a product adds it to


@dataclass(frozen=True)
class Adapter:
    """The adapter of one linear map of theirs: the module's name, and what is added to it."""

    name: str
    added: LowRank

    @property
    def rank(self) -> int:
        """The inner width."""
        return int(self.added.down.shape[-1])

    @property
    def alpha(self) -> float:
        """What PEFT divides by the rank."""
        return self.added.scale * self.rank


def export_adapter(
    run: Path, target: Path, *, dtype: str | None = None, family: str | None = None
) -> Exported:
    """Exports a run's newest adapters into a new folder, which appears when it is complete.

    Args:
        run: the run folder; the parts that its config names must have been imported.
        target: the new folder.
        dtype: the type to write; None keeps what is stored.
        family: whose names to use; None takes one that says the model, the imported one first.
    """
    refuse_existing(target)
    found = run_model(run, family)
    around = wrappers(found.model)
    if not around:
        raise ConfigError(
            f"--adapter: the model of {found.folder.path} has no adapters. Train with `--with "
            "lora:rank=8`, or leave out --adapter."
        )
    base = _base(found)
    places = _places(found, around)
    _check_only_adapters_learn(found, around)
    stored = stored_model(found.folder, found.model)
    adapters = []
    for wrapper in around:
        read_slot = stored.reader(wrapper.own_paths())
        for index, name in places[wrapper.path].items():
            added = wrapper.module.low_rank(wrapper.own_arrays(index, read_slot))
            adapters.append(Adapter(name, added))
    arrays = _arrays(adapters, number_type(dtype) if dtype else None)
    with whole_folder(target) as temporary:
        sizes = {name: (array.dtype, array.shape) for name, array in arrays.items()}
        path = temporary / "adapter_model.safetensors"
        with SafetensorsWriter(path, sizes, {"format": "pt"}) as writer:
            for name, array in arrays.items():
                writer.write(name, array, ())
        json_file(temporary / "adapter_config.json", _said(adapters, found.tensors) | base)
    size = sum(array.nbytes for array in arrays.values())
    return Exported(target, found.family.name, stored.step, len(arrays), size, False)


def _base(found: RunModel) -> dict[str, Any]:
    """Returns what tells others where the model is that the adapters belong to."""
    run = getattr(getattr(found.trainer.config, "start", None), "run", None)
    if not isinstance(run, str):
        raise ConfigError(
            f"--adapter: {found.folder.path} began from no other run, so nobody has the weights "
            f"that its adapters belong to. {_ADVICE}"
        )
    before = RunFolder(Path(run))
    about = before.about() if (before.path / "run.json").is_file() else {}
    source = about.get("imported", {}).get("from")
    name, _, revision = (source or "").removeprefix("hub:").partition("@")
    if not source or not source.startswith("hub:"):
        name, revision = source, ""
    return {"base_model_name_or_path": name, "revision": revision or None}


def _check_only_adapters_learn(found: RunModel, around: list[Wrapper]) -> None:
    """Refuses a run in which the base moves: on the model they came from, adapters would be off."""
    adapters = {path for wrapper in around for path in wrapper.own_paths()}
    frozen = getattr(found.trainer.config.learner, "frozen", ())
    learns = select_trained(parameter_specs(found.model), frozen).specs
    written = {
        slot.path for tensor in found.tensors.values() for row in tensor.slots for slot in row
    }
    moves = sorted((learns.keys() - adapters) | (variable_specs(found.model).keys() & written))
    if moves:
        raise ConfigError(
            f"--adapter: {moves[0]} is no adapter and was trained too ({len(moves)} such), so the "
            f"adapters alone are not this model. {_ADVICE}"
        )


def _places(found: RunModel, around: list[Wrapper]) -> dict[str, dict[tuple[int, ...], str]]:
    """Returns, by a wrapper's path and a layer's place, the name of their module."""
    specs = parameter_specs(found.plain)
    weights = {f"{wrapper.path}/{_WEIGHT}" for wrapper in around}
    places: dict[str, dict[tuple[int, ...], str]] = {wrapper.path: {} for wrapper in around}
    for name, tensor in found.tensors.items():
        for row in tensor.slots:
            for slot in row:
                if slot.path in weights:
                    _check_plain(name, tensor, slot.path, specs[slot.path])
                    path = slot.path.removesuffix(f"/{_WEIGHT}")
                    places[path][slot.index] = name.removesuffix(".weight")
    for wrapper in around:
        if not issubclass(type(wrapper.module), AddsLowRank) or not places[wrapper.path]:
            kind = type(wrapper.module).__name__
            raise ConfigError(
                f"--adapter: {wrapper.path} is a {kind}, which PEFT has no form for. {_ADVICE}"
            )
    return places


def _check_plain(name: str, tensor: Tensor, path: str, spec: Spec) -> None:
    """Refuses what is not one torch Linear on their side."""
    problem = ""
    if any(axis not in LAYER_AXES for axis in spec.axes[: spec.stacked]):
        problem = f"holds experts of {path}, which transformers keeps stacked"
    elif len(tensor.slots[0]) > 1:
        joined = ", ".join(slot.path.removesuffix(f"/{_WEIGHT}") for slot in tensor.slots[0])
        problem = f"holds several linear maps of ours joined ({joined}), each with its own adapter"
    elif tensor.lead or tensor.steps != (Transpose(),) or not name.endswith(".weight"):
        problem = f"holds {path} in another form than a torch Linear"
    if problem:
        raise ConfigError(
            f"--adapter: {name} {problem}; an adapter of PEFT fits one plain linear map. {_ADVICE}"
        )


def _arrays(adapters: list[Adapter], dtype: np.dtype[Any] | None) -> dict[str, np.ndarray]:
    """Returns the tensors under PEFT's names; a torch Linear keeps (out, in)."""
    arrays: dict[str, np.ndarray] = {}
    for adapter in adapters:
        name = f"base_model.model.{adapter.name}"
        for part, value in (("lora_A", adapter.added.down), ("lora_B", adapter.added.up)):
            array = np.ascontiguousarray(np.swapaxes(value, -1, -2))
            arrays[f"{name}.{part}.weight"] = array.astype(dtype or array.dtype, copy=False)
    return arrays


def _said(adapters: list[Adapter], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Returns adapter_config.json: the usual rank and alpha, and which modules differ."""
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


def _targets(adapted: set[str], tensors: Mapping[str, Tensor]) -> list[str]:
    """Names the adapted modules: by the last piece alone, where all that are so called are."""
    modules = {name.removesuffix(".weight") for name in tensors if name.endswith(".weight")}
    partly = {name.rpartition(".")[2] for name in modules - adapted}
    last = {name: name.rpartition(".")[2] for name in adapted}
    return sorted({name if piece in partly else piece for name, piece in last.items()})


def _number(value: float) -> float:
    """Writes a whole number as one."""
    return int(value) if float(value).is_integer() else value
