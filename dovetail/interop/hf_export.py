"""Exports a model to a Hugging Face checkpoint that `transformers` loads without Dovetail."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dovetail.config import ConfigError
from dovetail.data.tokenizer import MAIN_FILE
from dovetail.interop.family_match import differences, matching_family, model_tensors
from dovetail.interop.hf_import import MAX_SHARD_BYTES, Sizes, common_dtype, shards
from dovetail.interop.imported_runs import complete_tokenizer
from dovetail.interop.model_folders import (
    LocalFolder,
    new_folder,
    read_json,
    refuse_existing,
    write_json,
)
from dovetail.interop.run_weights import (
    ModelSource,
    RunWeights,
    SliceReader,
    merged,
    unwrapped,
)
from dovetail.models import ModelFamily
from dovetail.module import ForeignTensor
from dovetail.runtime import SafetensorsWriter, can_store
from dovetail.utils import Progress

# Keys of the imported config.json, other than the model's, that an export copies.
_COPIED_KEYS = ("bos_token_id", "eos_token_id", "pad_token_id", "max_position_embeddings")


@dataclass(frozen=True)
class ExportReport:
    """The result of an export; `is_text` says whether the model reads text."""

    folder: Path
    family: str
    step: int
    tensors: int
    bytes: int
    tokenizer: bool
    is_text: bool = True


def export_hf(
    source: ModelSource,
    target: Path,
    *,
    shard_bytes: int = MAX_SHARD_BYTES,
    dtype: str | None = None,
    family: str | None = None,
    progress: bool = True,
) -> ExportReport:
    """Exports a trained model into a new folder, which appears when it is complete.

    Adapters (LoRA, DoRA) are merged into the weights.

    Args:
        source: the model; `Run.model_source()` returns that of a run.
        target: the new folder.
        shard_bytes: the largest size of a shard.
        dtype: the dtype to write; None keeps the stored dtypes.
        family: the family whose format to write; None takes one that expresses the model exactly,
            the imported one first.
        progress: whether to show a progress bar.
    """
    refuse_existing(target)
    found = in_family(source, family)
    tensors, weights = found.tensors, merged(source.weights, source.model)
    sizes = _tensor_sizes(tensors, weights.dtypes, dtype)
    config_json = _config_json(found, sizes)
    with (
        new_folder(target) as temporary,
        Progress(f"exporting {source.name}", enabled=progress) as shown,
    ):
        _write_weights(temporary, tensors, sizes, weights, shard_bytes, shown)
        write_json(temporary / "config.json", config_json)
        has_tokenizer = _write_tokenizer(source, temporary)
        _write_generation(source, temporary)
    size = sum(math.prod(shape) * kind.itemsize for kind, shape in sizes.values())
    return ExportReport(
        folder=target,
        family=found.family.name,
        step=weights.step,
        tensors=len(tensors),
        bytes=size,
        tokenizer=has_tokenizer,
        is_text=found.family.input is None,
    )


@dataclass(frozen=True)
class FamilyModel:
    """A trained model in the format of a family.

    Attributes:
        source: the model.
        plain: the model without adapters and other mergeable layers.
        family: the family whose format is written.
        hf_config: the config.json of the model in that format.
        imported: the config.json from which the model, or the run it started from, was imported.
        tensors: the tensors of the checkpoint, by name.
    """

    source: ModelSource
    plain: Any
    family: ModelFamily
    hf_config: dict[str, Any]
    imported: dict[str, Any]
    tensors: dict[str, ForeignTensor]


def in_family(source: ModelSource, family: str | None = None) -> FamilyModel:
    """Finds a family that expresses a model exactly, the imported one first."""
    plain = unwrapped(source.model.config).build()
    imported = _imported_file(source, "config.json") or {}
    first = imported.get("model_type", "")
    chosen, hf_config = matching_family(plain.config, first=first, only=family)
    tensors = model_tensors(chosen, plain)
    return FamilyModel(source, plain, chosen, hf_config, imported, tensors)


def _tensor_sizes(
    tensors: Mapping[str, ForeignTensor], stored: Mapping[str, np.dtype[Any]], dtype: str | None
) -> Sizes:
    """Returns the dtype and shape of every tensor to write, in the order of the layers."""
    wanted = number_type(dtype) if dtype else None
    sizes: Sizes = {}
    for name in sorted(tensors, key=_natural):
        common = common_dtype(*(stored[one.path] for one in tensors[name].all_slices))
        sizes[name] = (wanted or common, tensors[name].shape)
    return sizes


def number_type(name: str) -> np.dtype[Any]:
    """Returns the dtype that --dtype names."""
    try:
        dtype = np.dtype(jax.numpy.dtype(name))
    except TypeError as error:
        raise ConfigError(f"--dtype: {name!r} is not a dtype; try bfloat16.") from error
    if not can_store(dtype) or not jax.numpy.issubdtype(dtype, jax.numpy.floating):
        raise ConfigError(f"--dtype: weights cannot be written as {name!r}; try bfloat16.")
    return dtype


def _natural(name: str) -> list[tuple[int, int, str]]:
    """A sort key that puts layer 2 before layer 10."""
    pieces = name.split(".")
    return [(1, int(piece), "") if piece.isdigit() else (0, 0, piece) for piece in pieces]


def _write_weights(
    folder: Path,
    tensors: Mapping[str, ForeignTensor],
    sizes: Sizes,
    weights: RunWeights,
    shard_bytes: int,
    progress: Progress,
) -> None:
    """Writes every tensor; parameters are read one group at a time, and only once."""
    files = shards(sizes, shard_bytes)
    names = {name: _file_name(n, len(files)) for n, group in enumerate(files) for name in group}
    total = sum(math.prod(shape) * dtype.itemsize for dtype, shape in sizes.values())
    progress.stage("weights", total, "bytes")
    with contextlib.ExitStack() as stack:
        writers = {
            file: stack.enter_context(
                SafetensorsWriter(
                    folder / file,
                    {name: sizes[name] for name in sizes if names[name] == file},
                    {"format": "pt"},
                )
            )
            for file in dict.fromkeys(names.values())
        }
        for paths, group in _groups(tensors).items():
            read_slice = weights.reader(list(paths))
            for name in group:
                _write_tensor(writers[names[name]], tensors[name], read_slice)
                progress.advance(math.prod(sizes[name][1]) * sizes[name][0].itemsize)
    if len(files) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(names.items()))}
        write_json(folder / "model.safetensors.index.json", index)


def _groups(tensors: Mapping[str, ForeignTensor]) -> dict[tuple[str, ...], list[str]]:
    """Groups tensors by the parameters that they are made of."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, tensor in tensors.items():
        paths = dict.fromkeys(one.path for one in tensor.all_slices)
        groups.setdefault(tuple(paths), []).append(name)
    return groups


def _write_tensor(
    writer: SafetensorsWriter, tensor: ForeignTensor, read_slice: SliceReader
) -> None:
    dtype = writer.tensors[tensor.name].dtype
    for index, slices in tensor.elements():
        element = tensor.to_foreign([read_slice(parameter_slice) for parameter_slice in slices])
        writer.write(tensor.name, element.astype(dtype, copy=False), index)


def _file_name(number: int, count: int) -> str:
    return (
        f"model-{number + 1:05d}-of-{count:05d}.safetensors" if count > 1 else "model.safetensors"
    )


def _imported_file(source: ModelSource, name: str) -> dict[str, Any] | None:
    """Returns a JSON file of the imported model, if it is there."""
    folder = source.source_folder
    if folder is None or not (folder / name).is_file():
        return None
    return read_json(LocalFolder(folder), name)


def _config_json(found: FamilyModel, sizes: Sizes) -> dict[str, Any]:
    """Returns config.json: the model in the family's format, with other keys of the import."""
    family, imported = found.family, found.imported
    model = found.hf_config | _end_tokens(found.source)
    is_same_type = imported.get("model_type") == family.model_type
    written = {**imported, **model} if is_same_type else dict(model)
    for key in ("auto_map", "quantization_config", "torch_dtype"):  # describe other files
        written.pop(key, None)
    try:
        changed = bool(differences(found.plain.config, family.from_hf(written)))
    except ConfigError:
        changed = True
    copied = {key: imported[key] for key in _COPIED_KEYS if key in imported}
    # If the model is no longer the imported one, its other keys may be wrong.
    written = {**(model if changed else written), **copied}
    largest = max(sizes.values(), key=lambda size: math.prod(size[1]))
    written |= {"model_type": family.model_type, "architectures": [family.architecture]}
    return written | {"dtype": largest[0].name}


def _end_tokens(source: ModelSource) -> dict[str, Any]:
    """Returns the special token ids, if the model was trained with a tokenizer of its own."""
    if source.is_imported or source.tokenizer is None:
        return {}
    end = source.tokenizer.end_of_text
    return {"bos_token_id": None, "eos_token_id": end, "pad_token_id": None}


def _write_tokenizer(source: ModelSource, target: Path) -> bool:
    """Writes the tokenizer files; returns whether there are any."""
    if source.tokenizer is None:
        return False
    source.tokenizer.save(target)
    if not (target / MAIN_FILE).is_file():
        return False
    if not source.is_imported:
        complete_tokenizer(target, source.tokenizer.end_of_text)
    return True


def _write_generation(source: ModelSource, target: Path) -> None:
    written = _imported_file(source, "generation_config.json")
    if written is None and not source.is_imported and source.tokenizer is not None:
        written = {"eos_token_id": source.tokenizer.end_of_text}
    if written is not None:
        write_json(target / "generation_config.json", written)
