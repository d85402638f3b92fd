"""A run folder into Hugging Face files that `transformers` loads with no code of ours."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dovetail.config import ConfigError
from dovetail.data import Progress
from dovetail.data.tokenizer_files import MAIN_FILE, copy_tokenizer
from dovetail.interop.folders import LocalFolder, read_json, refuse_existing, whole_folder
from dovetail.interop.importing import SHARD_BYTES, Sizes, common_dtype, shards
from dovetail.interop.matching import differences, family_of, model_tensors
from dovetail.interop.merging import merged, unwrapped
from dovetail.interop.runs import complete_tokenizer, source_folder
from dovetail.interop.stored import SlotReader, StoredModel, stored_model
from dovetail.models import Family
from dovetail.module import Tensor
from dovetail.runtime import RunFolder, SafetensorsWriter, can_store

# What a config.json may say beside the model itself, and an export says again.
_KEPT = ("bos_token_id", "eos_token_id", "pad_token_id", "max_position_embeddings")


@dataclass(frozen=True)
class Exported:
    """An account of an export."""

    folder: Path
    family: str
    step: int
    tensors: int
    bytes: int
    tokenizer: bool


def export_hf(
    run: Path,
    target: Path,
    *,
    shard_bytes: int = SHARD_BYTES,
    dtype: str | None = None,
    family: str | None = None,
    progress: bool = True,
) -> Exported:
    """Exports a run's newest parameters into a new folder, which appears when it is complete.

    Adapters are merged into the weights that they adapt.

    Args:
        run: the run folder; the parts that its config names must have been imported.
        target: the new folder.
        shard_bytes: above this size the weights are divided among files.
        dtype: the type to write; None keeps what is stored.
        family: whose format to write; None takes one that says the model, the imported one first.
        progress: whether to show a bar.
    """
    refuse_existing(target)
    found = run_model(run, family)
    folder, trainer, tensors = found.folder, found.trainer, found.tensors
    stored = merged(stored_model(folder, found.model), found.model)
    sizes = _their_sizes(tensors, stored.dtypes, dtype)
    said = _config_json(found, sizes)
    with whole_folder(target) as temporary, Progress(f"exporting {run}", progress) as shown:
        _write_weights(temporary, tensors, sizes, stored, shard_bytes, shown)
        json_file(temporary / "config.json", said)
        has_tokenizer = _write_tokenizer(folder, trainer, temporary)
        _write_generation(folder, trainer, temporary)
    size = sum(math.prod(shape) * kind.itemsize for kind, shape in sizes.values())
    return Exported(target, found.family.name, stored.step, len(tensors), size, has_tokenizer)


@dataclass(frozen=True)
class RunModel:
    """A run's model, and how a family says it.

    Attributes:
        folder: the run.
        trainer: as its config builds it.
        plain: the model without the wrappers that other programs do not know.
        family: the one whose format is written.
        said: the model in its words.
        before: what config.json said when the model, or the one it began from, was imported.
        tensors: what its files hold.
    """

    folder: RunFolder
    trainer: Any
    plain: Any
    family: Family
    said: dict[str, Any]
    before: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def model(self) -> Any:
        """The model as it is trained, wrappers included."""
        return self.trainer.model


def run_model(run: Path, family: str | None = None) -> RunModel:
    """Reads a run's config, and finds the family that says its model; or tries the one named."""
    folder = RunFolder(run)
    folder.about()  # says so if this is no run folder
    trainer: Any = folder.config().build()
    plain = unwrapped(trainer.model.config).build()
    before = _imported_words(folder)
    chosen, said = family_of(plain.config, first=before.get("model_type", ""), only=family)
    tensors = model_tensors(chosen, plain)
    return RunModel(folder, trainer, plain, chosen, said, before, tensors)


def _their_sizes(
    tensors: Mapping[str, Tensor], ours: Mapping[str, np.dtype[Any]], dtype: str | None
) -> Sizes:
    """Returns the type and shape of every tensor to write, layers in order."""
    wanted = number_type(dtype) if dtype else None
    sizes: Sizes = {}
    for name in sorted(tensors, key=_natural):
        slots = list(itertools.chain.from_iterable(tensors[name].slots))
        stored = common_dtype(*(ours[slot.path] for slot in slots))
        sizes[name] = (wanted or stored, tensors[name].shape)
    return sizes


def number_type(name: str) -> np.dtype[Any]:
    """Returns the type that --dtype names."""
    try:
        dtype = np.dtype(jax.numpy.dtype(name))
    except TypeError as error:
        raise ConfigError(f"--dtype: {name!r} is no type of number; try bfloat16.") from error
    if not can_store(dtype) or not jax.numpy.issubdtype(dtype, jax.numpy.floating):
        raise ConfigError(f"--dtype: weights cannot be written as {name!r}; try bfloat16.")
    return dtype


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Sorts numbers as numbers: layer 2 before layer 10."""
    pieces = name.split(".")
    return [(1, int(piece), "") if piece.isdigit() else (0, 0, piece) for piece in pieces]


def _write_weights(
    folder: Path,
    tensors: Mapping[str, Tensor],
    sizes: Sizes,
    stored: StoredModel,
    shard_bytes: int,
    progress: Progress,
) -> None:
    """Writes every tensor; our arrays are read one group at a time, and each only once."""
    files = shards(sizes, shard_bytes)
    names = {name: _file_name(n, len(files)) for n, group in enumerate(files) for name in group}
    total = sum(math.prod(shape) * dtype.itemsize for dtype, shape in sizes.values())
    progress.stage("weights", total)
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
            read_slot = stored.reader(list(paths))
            for name in group:
                _write_tensor(writers[names[name]], tensors[name], read_slot)
                progress.advance(math.prod(sizes[name][1]) * sizes[name][0].itemsize)
    if len(files) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(names.items()))}
        json_file(folder / "model.safetensors.index.json", index)


def _groups(tensors: Mapping[str, Tensor]) -> dict[tuple[str, ...], list[str]]:
    """Groups tensors by the arrays of ours that they are made of."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, tensor in tensors.items():
        paths = dict.fromkeys(slot.path for slots in tensor.slots for slot in slots)
        groups.setdefault(tuple(paths), []).append(name)
    return groups


def _write_tensor(writer: SafetensorsWriter, tensor: Tensor, read_slot: SlotReader) -> None:
    dtype = writer.entries[tensor.name].dtype
    for place, slots in tensor.elements():
        element = tensor.to_theirs([read_slot(slot) for slot in slots])
        writer.write(tensor.name, element.astype(dtype, copy=False), place)


def _file_name(number: int, count: int) -> str:
    return (
        f"model-{number + 1:05d}-of-{count:05d}.safetensors" if count > 1 else "model.safetensors"
    )


def _imported_words(folder: RunFolder) -> dict[str, Any]:
    """Returns what config.json said when the model, or the one it began from, was imported."""
    source = source_folder(folder)
    return read_json(LocalFolder(source), "config.json") if source is not None else {}


def _config_json(found: RunModel, sizes: Sizes) -> dict[str, Any]:
    """Returns the model in the family's words, with what else the imported config.json said."""
    family, before = found.family, found.before
    said = found.said | _ends(found.folder, found.trainer)
    whole = {**before, **said} if before.get("model_type") == family.model_type else dict(said)
    for key in ("auto_map", "quantization_config", "torch_dtype"):  # of files that are not ours
        whole.pop(key, None)
    try:
        changed = bool(differences(found.plain.config, family.from_hf(whole)))
    except ConfigError:
        changed = True
    kept = {key: before[key] for key in _KEPT if key in before}
    # Where the model is not the imported one any more, its other words may be wrong.
    whole = {**said, **kept} if changed else {**whole, **kept}
    largest = max(sizes.values(), key=lambda size: math.prod(size[1]))
    whole |= {"model_type": family.model_type, "architectures": [family.architecture]}
    return whole | {"dtype": largest[0].name}


def _ends(folder: RunFolder, trainer: Any) -> dict[str, Any]:
    """Returns the ids that begin and end a text, where the run's own tokenizer decides them."""
    if source_folder(folder) is not None or "imported" in folder.about():
        return {}
    end = trainer.input.tokenizer.end_of_text
    return {"bos_token_id": None, "eos_token_id": end, "pad_token_id": None}


def _write_tokenizer(folder: RunFolder, trainer: Any, target: Path) -> bool:
    """Writes the tokenizer's files where it has such; a run of its own learned one from data."""
    if (folder.tokenizer / MAIN_FILE).is_file():
        copy_tokenizer(folder.tokenizer, target)
        return True
    if "imported" in folder.about():
        return False
    trainer.input.tokenizer.save(target)
    if not (target / MAIN_FILE).is_file():
        return False
    complete_tokenizer(target, trainer.input.tokenizer.end_of_text)
    return True


def _write_generation(folder: RunFolder, trainer: Any, target: Path) -> None:
    source = source_folder(folder)
    if source is not None and (source / "generation_config.json").is_file():
        said = read_json(LocalFolder(source), "generation_config.json")
    elif "imported" in folder.about():
        return
    else:
        said = {"eos_token_id": trainer.input.tokenizer.end_of_text}
    json_file(target / "generation_config.json", said)


def json_file(path: Path, value: Mapping[str, Any]) -> None:
    """Writes a JSON object as people read it."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
