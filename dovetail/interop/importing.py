"""Hugging Face files into a run folder: checked first, then written tensor by tensor."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.config import ConfigError, did_you_mean
from dovetail.data import Progress
from dovetail.interop.folders import (
    ModelFolder,
    open_folder,
    read_json,
    refuse_existing,
    whole_folder,
)
from dovetail.interop.matching import model_tensors
from dovetail.interop.runs import imported_run, write_tokenizer
from dovetail.interop.sources import PlainTensor, SourceTensor, find_tensors
from dovetail.models import CausalLM, Family, find_family
from dovetail.module import Tensor
from dovetail.runtime import RunFolder, SafetensorsWriter

SHARD_BYTES = 5 * 10**9

_CONFIG = "config.json"
_GENERATION = "generation_config.json"

_LISTED = 5  # files of a folder that holds no model

# What stands in JSON for a type of Python, and what people call it.
_JSON_TYPES: dict[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((float, int), "a number"),
    str: ((str,), "a text"),
}

Sizes = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]


@dataclass(frozen=True)
class Imported:
    """An account of an import."""

    run: Path
    family: str
    parameters: int
    tensors: int
    bytes: int
    tokenizer: bool


def import_hf(source: str, run: Path, progress: bool = True) -> Imported:
    """Imports a model that `transformers` wrote into a new run folder.

    Everything that the headers tell is checked before anything is written, and the run folder
    appears when it is complete.

    Args:
        source: a folder, a URL that fsspec knows, or `hub:org/name`.
        run: the new run folder.
        progress: whether to show a bar.
    """
    refuse_existing(run)  # before anything is fetched
    folder = open_folder(source)
    _expect_model(folder)
    said = read_json(folder, _CONFIG)
    family = _family(folder, said)
    # What is quantised is read as bfloat16, so to the family it is an unquantised model.
    plain = {key: value for key, value in said.items() if key != "quantization_config"}
    model = _read_model(family, plain, folder)
    wanted = model_tensors(family, model.build())
    found = _matched(family, wanted, find_tensors(folder, said), folder)
    sizes = _our_sizes(wanted, found)
    with whole_folder(run) as temporary, Progress(f"importing {source}", progress) as shown:
        _write_weights(RunFolder(temporary).weights, wanted, found, sizes, shown)
        has_tokenizer = write_tokenizer(folder, temporary / "tokenizer")
        generation = read_json(folder, _GENERATION) if _GENERATION in folder.names() else {}
        _write_source(temporary / "source", plain, generation)
        trainer = imported_run(model, said, generation, temporary if has_tokenizer else None)
        about = {"imported": {"from": source, "family": family.name}, "imports": []}
        RunFolder(temporary).describe(trainer, about)
    return Imported(
        run=run,
        family=family.name,
        parameters=sum(math.prod(shape) for _, shape in sizes.values()),
        tensors=len(found),
        bytes=sum(tensor.size for tensor in found.values()),
        tokenizer=has_tokenizer,
    )


def _expect_model(folder: ModelFolder) -> None:
    """Refuses a folder that holds no model, and says what is there."""
    names = folder.names()
    if _CONFIG in names:
        return
    listed = ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")
    there = f"this one has no more than {listed}" if names else "this one is empty"
    raise ConfigError(
        f"{folder.name}/{_CONFIG}: there is no such file. Expected a folder that transformers "
        f"wrote, with {_CONFIG} and *.safetensors; {there}."
    )


def _family(folder: ModelFolder, said: Mapping[str, Any]) -> Family:
    model_type = said.get("model_type")
    if not isinstance(model_type, str):
        raise ConfigError(
            f"{folder.name}/{_CONFIG}: model_type: expected a name such as 'llama', got "
            f"{model_type!r}."
        )
    try:
        return find_family(model_type)
    except ConfigError as error:
        raise ConfigError(f"{folder.name}/{_CONFIG}: {error}") from error


def _read_model(family: Family, said: Mapping[str, Any], folder: ModelFolder) -> CausalLM.Config:
    """Makes the model's config; whatever a family stumbles over was said wrongly in the file."""
    file = f"{folder.name}/{_CONFIG}"
    try:
        return family.from_hf(said)
    except ConfigError as error:
        # A value of the wrong type is refused in our words, which its writer does not know.
        told = _mistyped(family, said) or str(error).removeprefix(f"{_CONFIG}: ")
        raise ConfigError(f"{file}: {told}") from error
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        advice = _mistyped(family, said) or "Compare it with the one that its makers published."
        raise ConfigError(
            f"{file} does not describe a {family.model_type} model ({type(error).__name__}: "
            f"{error}). {advice}"
        ) from error


def _mistyped(family: Family, said: Mapping[str, Any]) -> str:
    """Names the values of another type than in the family's tiny form; the empty string if none."""
    told = []
    for key, example in family.tiny().items():
        value = said.get(key)
        if value is None or type(example) not in _JSON_TYPES:
            continue
        kinds, wanted = _JSON_TYPES[type(example)]
        if type(value) not in kinds:
            told.append(f"{key}: expected {wanted}, such as {json.dumps(example)}, got {value!r}.")
    return " ".join(told)


def _matched(
    family: Family,
    wanted: Mapping[str, Tensor],
    found: Mapping[str, SourceTensor],
    folder: ModelFolder,
) -> dict[str, SourceTensor]:
    """Returns the source of every wanted tensor; refuses what is missing, extra or misshapen."""
    # Files of a base model leave the first piece of every name out, as GPT-2's do.
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
            f"{missing[0]}: no file in {folder.name} holds this tensor, which the model of "
            f"{_CONFIG} needs ({len(missing)} are missing). {did_you_mean(missing[0], extra)}"
        )
    for name, tensor in extra.items():
        if not _is_copy(tensor, matched):
            raise ConfigError(
                f"{tensor.where}: the model of {_CONFIG} has no such tensor ({len(extra)} are too "
                f"many). {did_you_mean(name, wanted)} Either {_CONFIG} is of another model, or the "
                f"family {family.name!r} does not know this part of it."
            )
    for name, tensor in matched.items():
        _check_shape(tensor, wanted[name])
    return matched


def _check_shape(tensor: SourceTensor, wanted: Tensor) -> None:
    if tensor.shape != wanted.shape:
        raise ConfigError(
            f"{tensor.where}: its shape is {tensor.shape}, but the model of {_CONFIG} has "
            f"{wanted.shape} there."
        )
    if tensor.dtype.name.startswith("float8"):
        raise ConfigError(
            f"{tensor.where}: its numbers are {tensor.dtype.name}, and mean nothing without "
            "scales; no file holds that name with _scale_inv, or config.json says nothing of "
            "quantization_config."
        )
    if not np.issubdtype(tensor.dtype, np.floating) and tensor.dtype.kind != "V":
        raise ConfigError(f"{tensor.where}: expected floating-point numbers, got {tensor.dtype}.")


def _is_copy(tensor: SourceTensor, matched: Mapping[str, SourceTensor]) -> bool:
    """Says whether a tensor is one of the others again: a tied head that was written all the same.

    Vectors and smaller ones may be alike by chance.
    """
    if not isinstance(tensor, PlainTensor) or len(tensor.shape) < 2:
        return False
    others = [other for other in matched.values() if isinstance(other, PlainTensor)]
    return any(tensor.same_bytes(other) for other in others)


def _our_sizes(wanted: Mapping[str, Tensor], found: Mapping[str, SourceTensor]) -> Sizes:
    """Returns the type and whole shape of every array of ours; layers of one share a type."""
    sizes: Sizes = {}
    for name, tensor in wanted.items():
        for slots in tensor.slots:
            for slot in slots:
                dtype, shape = sizes.get(slot.path, (found[name].dtype, (0,) * len(slot.index)))
                lead = tuple(max(n, i + 1) for n, i in zip(shape, slot.index, strict=False))
                dtype = common_dtype(dtype, found[name].dtype)
                sizes[slot.path] = (dtype, (*lead, *slot.shape))
    return sizes


def _write_weights(
    folder: Path,
    wanted: Mapping[str, Tensor],
    found: Mapping[str, SourceTensor],
    sizes: Sizes,
    progress: Progress,
) -> None:
    """Writes our arrays, in the order in which the source has their parts."""
    folder.mkdir()
    progress.stage("weights", sum(tensor.size for tensor in found.values()))
    with contextlib.ExitStack() as stack:
        writers: dict[str, SafetensorsWriter] = {}
        for number, names in enumerate(shards(sizes, SHARD_BYTES), start=1):
            path = folder / f"{number:05d}.safetensors"
            writer = SafetensorsWriter(path, {name: sizes[name] for name in names})
            stack.enter_context(writer)
            writers |= dict.fromkeys(names, writer)
        for name in sorted(found, key=lambda name: found[name].order):
            source, tensor = found[name], wanted[name]
            for place, slots in tensor.elements():
                arrays = tensor.to_ours(source.read(place))
                for slot, array in zip(slots, arrays, strict=True):
                    dtype = sizes[slot.path][0]
                    writers[slot.path].write(slot.path, array.astype(dtype, copy=False), slot.index)
                progress.advance(source.size // len(tensor.slots))


def common_dtype(*dtypes: np.dtype[Any]) -> np.dtype[Any]:
    """Returns the one type, or one that holds the numbers of all exactly."""
    if len(set(dtypes)) == 1:
        return dtypes[0]
    return np.dtype(np.float32 if max(dtype.itemsize for dtype in dtypes) <= 4 else np.float64)


def shards(sizes: Sizes, limit: int) -> list[list[str]]:
    """Divides arrays among files of at most `limit` bytes, in order; a larger one stands alone."""
    files: list[list[str]] = [[]]
    room = limit
    for name, (dtype, shape) in sizes.items():
        size = math.prod(shape) * dtype.itemsize
        if size > room and files[-1]:
            files.append([])
            room = limit
        files[-1].append(name)
        room -= size
    return files


def _write_source(folder: Path, said: Mapping[str, Any], generation: Mapping[str, Any]) -> None:
    """Keeps what an export says again, and we have no field for."""
    folder.mkdir()
    for name, value in ((_CONFIG, said), (_GENERATION, generation)):
        if value:
            (folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
