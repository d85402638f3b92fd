"""The tensors of a Hugging Face checkpoint: found in its shards, checked against its index."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dovetail.config import ConfigError
from dovetail.interop.model_folders import ModelFolder, read_json
from dovetail.runtime import TensorInfo, read_header, verify_tensor

Array = NDArray[Any]

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_SUFFIX = ".safetensors"
_COMPARED_BYTES = 2**24  # at a time


class SourceTensor(Protocol):
    """A tensor to import, dequantized if the checkpoint is quantized."""

    @property
    def where(self) -> str:
        """The name and the file, for error messages."""
        ...

    @property
    def order(self) -> tuple[str, int]:
        """File and offset, to read in disk order."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype."""
        ...

    @property
    def size(self) -> int:
        """The number of bytes to read."""
        ...

    def read(self, index: tuple[int, ...] = ()) -> Array:
        """Returns the subarray at an index along the first axes."""
        ...


@dataclass(frozen=True)
class PlainTensor:
    """A tensor as it is stored in its file."""

    folder: ModelFolder
    file: str
    name: str
    info: TensorInfo

    @property
    def where(self) -> str:
        """The name and the file, for error messages."""
        return f"{self.name} in {self.folder.name}/{self.file}"

    @property
    def order(self) -> tuple[str, int]:
        """File and offset, to read in disk order."""
        return self.file, self.info.offset

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return self.info.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype."""
        return self.info.dtype

    @property
    def size(self) -> int:
        """The number of bytes to read."""
        return self.info.size

    def read(self, index: tuple[int, ...] = ()) -> Array:
        """Returns the subarray at an index along the first axes."""
        wanted = self.info.at(index)
        data = self.folder.read(self.file, wanted.offset, wanted.size)
        if len(data) != wanted.size:
            raise ConfigError(f"{self.where}: the file became shorter while it was read.")
        return np.frombuffer(data, wanted.dtype).reshape(wanted.shape)

    def verify(self) -> None:
        """Compares the tensor with its digest, if Dovetail wrote the file."""
        verify_tensor(self.where, self.info, functools.partial(self.folder.read, self.file))

    def same_bytes(self, other: PlainTensor) -> bool:
        """Whether another tensor has the same content; compares a chunk at a time."""
        if (self.shape, self.dtype) != (other.shape, other.dtype):
            return False
        for start in range(0, self.size, _COMPARED_BYTES):
            count = min(_COMPARED_BYTES, self.size - start)
            data = self.folder.read(self.file, self.info.offset + start, count)
            if data != other.folder.read(other.file, other.info.offset + start, count):
                return False
        return True


def find_tensors(folder: ModelFolder) -> dict[str, PlainTensor]:
    """Returns the tensors of a folder by name."""
    plain: dict[str, PlainTensor] = {}
    files, index = _files(folder)
    for file in files:
        where = f"{folder.name}/{file}"
        size = folder.size(file)
        entries = read_header(where, size, functools.partial(folder.read, file))
        for name, info in entries.items():
            if name in plain:
                raise ConfigError(
                    f"{name} is in {where} and again in {plain[name].file}. Remove one."
                )
            plain[name] = PlainTensor(folder, file, name, info)
    for name, file in index.items():
        if name not in plain or plain[name].file != file:
            raise ConfigError(
                f"{name} should be in {folder.name}/{file} according to {_INDEX}, but is not. "
                "Fetch the files again."
            )
    return plain


def _files(folder: ModelFolder) -> tuple[list[str], dict[str, str]]:
    """Returns the files to read, and the weight_map of the index if there is one."""
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
            f"{folder.name} has {len(found)} {_SUFFIX} files, but no {_INDEX}. Fetch it too."
        )
    pickled = any(name.endswith((".bin", ".pt", ".pth")) for name in names)
    raise ConfigError(
        f"{folder.name} has no {_SUFFIX} file."
        + (" Pickled weights (.bin, .pt) can run code and are not read." if pickled else "")
        + " Convert the model with transformers' save_pretrained."
    )
