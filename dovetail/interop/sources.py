"""The tensors of a model folder: found, checked against its index, and read in pieces."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dovetail.config import ConfigError
from dovetail.interop.folders import ModelFolder, read_json
from dovetail.interop.quantized import (
    BFLOAT16,
    Array,
    block_fp8_to_bfloat16,
    mxfp4_to_bfloat16,
)
from dovetail.runtime import Entry, read_header

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_SUFFIX = ".safetensors"
_COMPARED_AT_A_TIME = 2**24


class SourceTensor(Protocol):
    """A tensor to import, as it will be: dequantised, if it is quantised in the file."""

    @property
    def where(self) -> str:
        """Names the tensor and its file."""
        ...

    @property
    def order(self) -> tuple[str, int]:
        """File and place in it, to read in the order of the disk."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type."""
        ...

    @property
    def size(self) -> int:
        """The bytes to read in all."""
        ...

    def read(self, index: tuple[int, ...] = ()) -> Array:
        """Returns what stands at a place along the first axes."""
        ...


@dataclass(frozen=True)
class PlainTensor:
    """A tensor as it is in its file."""

    folder: ModelFolder
    file: str
    name: str
    entry: Entry

    @property
    def where(self) -> str:
        """Names the tensor and its file."""
        return f"{self.name} in {self.folder.name}/{self.file}"

    @property
    def order(self) -> tuple[str, int]:
        """File and place in it."""
        return self.file, self.entry.start

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return self.entry.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type."""
        return self.entry.dtype

    @property
    def size(self) -> int:
        """The bytes to read."""
        return self.entry.size

    def read(self, index: tuple[int, ...] = ()) -> Array:
        """Returns what stands at a place along the first axes."""
        part = self.entry.part(index)
        data = self.folder.read(self.file, part.start, part.size)
        if len(data) != part.size:
            raise ConfigError(f"{self.where}: the file became shorter while it was read.")
        return np.frombuffer(data, part.dtype).reshape(part.shape)

    def same_bytes(self, other: PlainTensor) -> bool:
        """Says whether another tensor is the same, number by number; reads a little at a time."""
        if (self.shape, self.dtype) != (other.shape, other.dtype):
            return False
        for start in range(0, self.size, _COMPARED_AT_A_TIME):
            count = min(_COMPARED_AT_A_TIME, self.size - start)
            ours = self.folder.read(self.file, self.entry.start + start, count)
            if ours != other.folder.read(other.file, other.entry.start + start, count):
                return False
        return True


@dataclass(frozen=True)
class Mxfp4Tensor:
    """Experts in four bits; what transformers loads them as is the transpose of what is stored."""

    blocks: PlainTensor
    scales: PlainTensor

    def __post_init__(self) -> None:
        """Checks that the two belong together."""
        blocks, scales = self.blocks, self.scales
        if len(blocks.shape) < 3 or blocks.shape[:-1] != scales.shape:
            raise ConfigError(
                f"{blocks.where}: its shape is {blocks.shape}, which does not fit the scales "
                f"{scales.shape} of {scales.where}."
            )
        for tensor in (blocks, scales):
            if tensor.dtype != np.uint8:
                raise ConfigError(f"{tensor.where}: expected U8 for MXFP4, got {tensor.dtype}.")

    @property
    def where(self) -> str:
        """Names the tensor and its file."""
        return self.blocks.where

    @property
    def order(self) -> tuple[str, int]:
        """File and place in it."""
        return self.blocks.order

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape when dequantised."""
        *lead, rows, groups, count = self.blocks.shape
        return (*lead, groups * count * 2, rows)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type when dequantised."""
        return BFLOAT16

    @property
    def size(self) -> int:
        """The bytes to read."""
        return self.blocks.size + self.scales.size

    def read(self, index: tuple[int, ...] = ()) -> Array:
        """Returns what stands at a place along the first axes, dequantised."""
        values = mxfp4_to_bfloat16(self.blocks.read(index), self.scales.read(index))
        return np.swapaxes(values, -1, -2)


@dataclass(frozen=True)
class BlockFp8Tensor:
    """A matrix in eight bits with a scale a block."""

    weight: PlainTensor
    scales: PlainTensor
    block: tuple[int, int]

    def __post_init__(self) -> None:
        """Checks that the two belong together."""
        weight, scales = self.weight, self.scales
        wanted = tuple(-(-n // b) for n, b in zip(weight.shape, self.block, strict=False))
        if len(weight.shape) != 2 or scales.shape != wanted:
            raise ConfigError(
                f"{scales.where}: expected scales of shape {wanted} (blocks of {self.block}) for "
                f"{weight.where} of shape {weight.shape}, got {scales.shape}."
            )

    @property
    def where(self) -> str:
        """Names the tensor and its file."""
        return self.weight.where

    @property
    def order(self) -> tuple[str, int]:
        """File and place in it."""
        return self.weight.order

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return self.weight.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type when dequantised."""
        return BFLOAT16

    @property
    def size(self) -> int:
        """The bytes to read."""
        return self.weight.size + self.scales.size

    def read(self, index: tuple[int, ...] = ()) -> Array:
        """Returns what stands at a place along the first axes, dequantised."""
        return block_fp8_to_bfloat16(self.weight.read(), self.scales.read(), self.block)[index]


def find_tensors(folder: ModelFolder, config: Mapping[str, Any]) -> dict[str, SourceTensor]:
    """Returns the tensors of a folder by name; quantised ones under the name they stand for."""
    plain: dict[str, PlainTensor] = {}
    files, index = _files(folder)
    for file in files:
        where = f"{folder.name}/{file}"
        size = folder.size(file)
        entries = read_header(where, size, functools.partial(folder.read, file))
        for name, entry in entries.items():
            if name in plain:
                raise ConfigError(
                    f"{name} is in {where} and again in {plain[name].file}. Remove one."
                )
            plain[name] = PlainTensor(folder, file, name, entry)
    for name, file in index.items():
        if name not in plain or plain[name].file != file:
            raise ConfigError(
                f"{name} should be in {folder.name}/{file}, as {_INDEX} says, and is not. Fetch "
                "the files again."
            )
    return _dequantised(plain, folder, config)


def _files(folder: ModelFolder) -> tuple[list[str], dict[str, str]]:
    """Returns the files to read, and what the index says of tensors, if there is one."""
    names = folder.names()
    if _INDEX in names:
        index = read_json(folder, _INDEX).get("weight_map")
        strings = isinstance(index, dict) and all(isinstance(v, str) for v in index.values())
        if not isinstance(index, dict) or not index or not strings:
            raise ConfigError(f"{folder.name}/{_INDEX}: expected a weight_map of file names.")
        return sorted(set(index.values())), index
    found = [name for name in names if name.endswith(_SUFFIX)]
    if _SINGLE in found or len(found) == 1:
        return [_SINGLE if _SINGLE in found else found[0]], {}
    if found:
        raise ConfigError(
            f"{folder.name} has {len(found)} {_SUFFIX} files, but no {_INDEX} that says which "
            "belong together. Fetch it too."
        )
    pickled = any(name.endswith((".bin", ".pt", ".pth")) for name in names)
    raise ConfigError(
        f"{folder.name} has no {_SUFFIX} file."
        + (" Pickled weights (.bin, .pt) can run code and are not read." if pickled else "")
        + " Convert the model with transformers' save_pretrained."
    )


def _dequantised(
    plain: Mapping[str, PlainTensor], folder: ModelFolder, config: Mapping[str, Any]
) -> dict[str, SourceTensor]:
    settings = config.get("quantization_config")
    found: dict[str, SourceTensor] = dict(plain)
    if not settings:
        return found
    method = settings.get("quant_method") if isinstance(settings, dict) else settings
    if method == "mxfp4":
        for name in [name for name in plain if name.endswith("_blocks")]:
            whole = name.removesuffix("_blocks")
            scales = _partner(plain, name, f"{whole}_scales")
            del found[name], found[scales.name]
            found[whole] = Mxfp4Tensor(plain[name], scales)
    elif method == "fp8":
        block = _block_size(settings, folder)
        for name in [name for name in plain if name.endswith("_scale_inv")]:
            weight = _partner(plain, name, name.removesuffix("_scale_inv"))
            del found[name]
            found[weight.name] = BlockFp8Tensor(weight, plain[name], block)
    else:
        raise ConfigError(
            f"{folder.name}/config.json: quantization_config.quant_method is {method!r}; known are "
            "'mxfp4' and 'fp8'. Import the unquantised model."
        )
    return found


def _partner(plain: Mapping[str, PlainTensor], name: str, partner: str) -> PlainTensor:
    if partner not in plain:
        raise ConfigError(f"{plain[name].where} needs {partner}, which no file holds.")
    return plain[partner]


def _block_size(settings: Mapping[str, Any], folder: ModelFolder) -> tuple[int, int]:
    size = settings.get("weight_block_size")
    numbers = isinstance(size, list) and len(size) == 2 and all(type(n) is int for n in size)
    if not numbers or math.prod(size or ()) <= 0 or min(size or (0,)) <= 0:
        raise ConfigError(
            f"{folder.name}/config.json: quantization_config.weight_block_size: expected two "
            f"numbers such as [128, 128], got {size!r}."
        )
    assert isinstance(size, list)
    return size[0], size[1]
