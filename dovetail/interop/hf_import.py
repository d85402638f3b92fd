"""Imports a Hugging Face checkpoint into a run folder: validates it, then copies each tensor."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.config import ConfigError, did_you_mean
from dovetail.interop.family_match import model_tensors
from dovetail.interop.imported_runs import imported_run, write_tokenizer
from dovetail.interop.model_folders import (
    ModelFolder,
    new_folder,
    open_folder,
    read_json,
    refuse_existing,
    write_json,
)
from dovetail.interop.quantized import dequantized
from dovetail.interop.source_tensors import PlainTensor, SourceTensor, find_tensors
from dovetail.models import ModelFamily, find_family
from dovetail.module import ForeignTensor, Module
from dovetail.runtime import RunFolder, SafetensorsWriter
from dovetail.utils import Progress, file_digests

MAX_SHARD_BYTES = 5 * 10**9

_CONFIG = "config.json"
_GENERATION = "generation_config.json"

_LISTED = 5  # files in the error for a folder without a model

# For a Python type: the types that JSON may have instead, and its name in messages.
_JSON_TYPES: dict[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((float, int), "a number"),
    str: ((str,), "a string"),
}

Sizes = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]


@dataclass(frozen=True)
class ImportReport:
    """The result of an import; `is_text` says whether the model reads text."""

    run: Path
    family: str
    parameters: int
    tensors: int
    bytes: int
    tokenizer: bool
    is_text: bool = True


def import_hf(
    source: str, run: Path, progress: bool = True, imports: Sequence[str] = ()
) -> ImportReport:
    """Imports a checkpoint of `transformers` into a new run folder.

    All headers are validated before anything is written. The run folder appears when it is
    complete.

    Args:
        source: a folder, an fsspec URL, or `hub:org/name`.
        run: the new run folder.
        progress: whether to show a progress bar.
        imports: the imported packages that the family may be in; the run records them.
    """
    refuse_existing(run)  # before anything is downloaded
    folder = open_folder(source)
    _check_has_model(folder)
    hf_config = read_json(folder, _CONFIG)
    family = _family(folder, hf_config)
    # Quantized tensors are read as bfloat16, so to the family the model is unquantized.
    unquantized = {key: value for key, value in hf_config.items() if key != "quantization_config"}
    model = _model_config(family, unquantized, folder)
    wanted = model_tensors(family, model.build())
    tensors = dequantized(find_tensors(folder), folder, hf_config)
    found = _match(family, wanted, tensors, folder)
    sizes = _parameter_sizes(wanted, found)
    with new_folder(run) as temporary, Progress(f"importing {source}", enabled=progress) as shown:
        _write_weights(RunFolder(temporary).weights, wanted, found, sizes, shown)
        has_tokenizer = write_tokenizer(folder, temporary / "tokenizer")
        generation = read_json(folder, _GENERATION) if _GENERATION in folder.names() else {}
        _write_source(temporary / "source", unquantized, generation)
        with_tokenizer = temporary if has_tokenizer else None
        trainer = imported_run(family, model, hf_config, generation, with_tokenizer)
        about: dict[str, Any] = {
            "imported": {"from": source, "family": family.name},
            "imports": list(imports),
        }
        if has_tokenizer:
            about["tokenizer"] = file_digests(temporary / "tokenizer")
        RunFolder(temporary).describe(trainer, about)
    return ImportReport(
        run=run,
        family=family.name,
        parameters=sum(math.prod(shape) for _, shape in sizes.values()),
        tensors=len(found),
        bytes=sum(tensor.size for tensor in found.values()),
        tokenizer=has_tokenizer,
        is_text=family.input is None,
    )


def _check_has_model(folder: ModelFolder) -> None:
    """Raises ConfigError if the folder has no config.json, and lists its files."""
    names = folder.names()
    if _CONFIG in names:
        return
    listed = ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")
    there = f"this one has only {listed}" if names else "this one is empty"
    raise ConfigError(
        f"{folder.name}/{_CONFIG}: there is no such file. Expected a folder that transformers "
        f"wrote, with {_CONFIG} and *.safetensors; {there}."
    )


def _family(folder: ModelFolder, hf_config: Mapping[str, Any]) -> ModelFamily:
    model_type = hf_config.get("model_type")
    if not isinstance(model_type, str):
        raise ConfigError(
            f"{folder.name}/{_CONFIG}: model_type: expected a name such as 'llama', got "
            f"{model_type!r}."
        )
    try:
        return find_family(model_type)
    except ConfigError as error:
        raise ConfigError(f"{folder.name}/{_CONFIG}: {error}") from error


def _model_config(
    family: ModelFamily, hf_config: Mapping[str, Any], folder: ModelFolder
) -> Module.Config[Any]:
    """Converts config.json to a model config. Any error in it is an error in the file."""
    file = f"{folder.name}/{_CONFIG}"
    _check_values(hf_config, f"{file}: ")
    try:
        return family.from_hf(hf_config)
    except ConfigError as error:
        # A wrong type is reported in terms of our fields, which the user does not know.
        message = _mistyped(family, hf_config) or str(error).removeprefix(f"{_CONFIG}: ")
        raise ConfigError(f"{file}: {message}") from error
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        advice = _mistyped(family, hf_config) or "Compare it with the published one."
        raise ConfigError(
            f"{file} does not describe a {family.model_type} model ({type(error).__name__}: "
            f"{error}). {advice}"
        ) from error


def _check_values(hf_config: Mapping[str, Any], above: str) -> None:
    """Raises ConfigError for NaN, infinity and dtypes that do not exist, which no family reads."""
    for key, value in hf_config.items():
        if isinstance(value, Mapping):
            _check_values(value, f"{above}{key}.")
        elif isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{above}{key}: expected a finite number, got {value}.")
        elif key in ("dtype", "torch_dtype") and value not in (None, "auto"):
            try:
                np.dtype(str(value).removeprefix("torch."))
            except TypeError as error:
                raise ConfigError(
                    f"{above}{key}: expected a dtype such as 'bfloat16', got {value!r}."
                ) from error


def _mistyped(family: ModelFamily, hf_config: Mapping[str, Any]) -> str:
    """Lists the values whose type differs from that in the family's tiny config; may be empty."""
    messages = []
    for key, example in family.tiny().items():
        value = hf_config.get(key)
        if value is None or type(example) not in _JSON_TYPES:
            continue
        kinds, wanted = _JSON_TYPES[type(example)]
        if type(value) not in kinds:
            messages.append(
                f"{key}: expected {wanted}, such as {json.dumps(example)}, got {value!r}."
            )
    return " ".join(messages)


def _match(
    family: ModelFamily,
    wanted: Mapping[str, ForeignTensor],
    found: Mapping[str, SourceTensor],
    folder: ModelFolder,
) -> dict[str, SourceTensor]:
    """Returns the source of every wanted tensor; refuses missing, extra and wrongly shaped ones."""
    # Checkpoints of a base model omit the first part of every name, as those of GPT-2 do.
    prefixes = sorted({name.partition(".")[0] for name in wanted})
    matched: dict[str, SourceTensor] = {}
    extra: dict[str, SourceTensor] = {}
    for name, tensor in found.items():
        known = [name, *(f"{prefix}.{name}" for prefix in prefixes)]
        target = next((each for each in known if each in wanted and each not in matched), None)
        if target is not None:
            matched[target] = tensor
        elif not any(fnmatch.fnmatchcase(name, pattern) for pattern in family.ignored):
            extra[name] = tensor
    missing = [name for name in wanted if name not in matched]
    if missing:
        raise ConfigError(
            f"{missing[0]}: no file in {folder.name} has this tensor, which the model of "
            f"{_CONFIG} needs ({len(missing)} are missing). {did_you_mean(missing[0], extra)}"
        )
    for name, tensor in extra.items():
        if not _is_copy(tensor, matched):
            raise ConfigError(
                f"{tensor.where}: the model of {_CONFIG} has no such tensor ({len(extra)} are "
                f"unexpected). {did_you_mean(name, wanted)} Either {_CONFIG} is of another model, "
                f"or the family {family.name!r} does not support this tensor."
            )
    for name, tensor in matched.items():
        _check_shape(tensor, wanted[name])
    return matched


def _check_shape(tensor: SourceTensor, wanted: ForeignTensor) -> None:
    if tensor.shape != wanted.shape:
        raise ConfigError(
            f"{tensor.where}: its shape is {tensor.shape}, but the model of {_CONFIG} has "
            f"{wanted.shape} there."
        )
    if tensor.dtype.name.startswith("float8"):
        raise ConfigError(
            f"{tensor.where}: its dtype is {tensor.dtype.name}, which needs scales; either no file "
            "has that name with _scale_inv, or config.json has no quantization_config."
        )
    if not np.issubdtype(tensor.dtype, np.floating) and tensor.dtype.kind != "V":
        raise ConfigError(f"{tensor.where}: expected a floating-point dtype, got {tensor.dtype}.")


def _is_copy(tensor: SourceTensor, matched: Mapping[str, SourceTensor]) -> bool:
    """Whether a tensor is a copy of a matched one, such as a tied head that was saved anyway.

    Vectors are not compared: they may be equal by chance.
    """
    if not isinstance(tensor, PlainTensor) or len(tensor.shape) < 2:
        return False
    others = [other for other in matched.values() if isinstance(other, PlainTensor)]
    return any(tensor.same_bytes(other) for other in others)


def _parameter_sizes(
    wanted: Mapping[str, ForeignTensor], found: Mapping[str, SourceTensor]
) -> Sizes:
    """Returns the dtype and stacked shape of every parameter; all its layers share a dtype."""
    sizes: Sizes = {}
    for name, tensor in wanted.items():
        for one in tensor.all_slices:
            dtype, shape = sizes.get(one.path, (found[name].dtype, (0,) * len(one.index)))
            lead = tuple(max(n, i + 1) for n, i in zip(shape, one.index, strict=False))
            sizes[one.path] = (common_dtype(dtype, found[name].dtype), (*lead, *one.shape))
    return sizes


def _write_weights(
    folder: Path,
    wanted: Mapping[str, ForeignTensor],
    found: Mapping[str, SourceTensor],
    sizes: Sizes,
    progress: Progress,
) -> None:
    """Writes the parameters in the disk order of the source tensors."""
    folder.mkdir()
    progress.stage("weights", sum(tensor.size for tensor in found.values()), "bytes")
    with contextlib.ExitStack() as stack:
        writers: dict[str, SafetensorsWriter] = {}
        for number, names in enumerate(shards(sizes, MAX_SHARD_BYTES), start=1):
            path = folder / f"{number:05d}.safetensors"
            writer = SafetensorsWriter(path, {name: sizes[name] for name in names})
            stack.enter_context(writer)
            writers |= dict.fromkeys(names, writer)
        for name in sorted(found, key=lambda name: found[name].order):
            source, tensor = found[name], wanted[name]
            if isinstance(source, PlainTensor):
                source.verify()
            for index, slices in tensor.elements():
                arrays = tensor.to_parameters(source.read(index))
                for one, array in zip(slices, arrays, strict=True):
                    exact = array.astype(sizes[one.path][0], copy=False)
                    writers[one.path].write(one.path, exact, one.index)
                progress.advance(source.size // len(tensor.slices))


def common_dtype(*dtypes: np.dtype[Any]) -> np.dtype[Any]:
    """Returns a dtype that represents the values of all dtypes exactly."""
    if len(set(dtypes)) == 1:
        return dtypes[0]
    return np.dtype(np.float32 if max(dtype.itemsize for dtype in dtypes) <= 4 else np.float64)


def shards(sizes: Sizes, limit: int) -> list[list[str]]:
    """Groups arrays into shards of at most `limit` bytes; a larger array gets its own shard."""
    files: list[list[str]] = [[]]
    left = limit
    for name, (dtype, shape) in sizes.items():
        size = math.prod(shape) * dtype.itemsize
        if size > left and files[-1]:
            files.append([])
            left = limit
        files[-1].append(name)
        left -= size
    return files


def _write_source(
    folder: Path, hf_config: Mapping[str, Any], generation: Mapping[str, Any]
) -> None:
    """Saves config.json and generation_config.json for a later export."""
    folder.mkdir()
    for name, value in ((_CONFIG, hf_config), (_GENERATION, generation)):
        if value:
            write_json(folder / name, value)
