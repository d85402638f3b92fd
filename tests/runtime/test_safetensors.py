"""Our files are safetensors files: others read them, and we read theirs."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dovetail.config import ConfigError
from dovetail.interop.model_folders import LocalFolder
from dovetail.interop.source_tensors import find_tensors
from dovetail.runtime import SafetensorsWriter, StoredWeights
from dovetail.runtime.safetensors import SafetensorsFile

ARRAYS = {
    "small": np.arange(3, dtype=np.int8),
    "deep": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "bfloat16": np.arange(6, dtype=np.float32).reshape(3, 2).astype(ml_dtypes.bfloat16),
    "scalar": np.array(7.5),
    "empty": np.zeros((0, 4), np.float16),
}


def test_the_library_reads_what_is_written_in_slices(tmp_path: Path) -> None:
    sizes = {name: (array.dtype, array.shape) for name, array in ARRAYS.items()}
    with SafetensorsWriter(tmp_path / "a.safetensors", sizes, {"format": "pt"}) as writer:
        for index in [(1, 2), (0, 0), (1, 0), (0, 2), (0, 1), (1, 1)]:
            writer.write("deep", ARRAYS["deep"][index], index)
        for row in range(3):
            writer.write("bfloat16", ARRAYS["bfloat16"][row], (row,))
        for name in ("small", "scalar", "empty"):
            writer.write(name, ARRAYS[name])
    read = load_file(tmp_path / "a.safetensors")
    assert read.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)


def test_what_the_library_writes_is_read_in_full_and_in_slices(tmp_path: Path) -> None:
    save_file(ARRAYS, tmp_path / "b.safetensors")
    file = SafetensorsFile(tmp_path / "b.safetensors")
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(file.array(name), array)
        assert file.array(name).dtype == array.dtype
    np.testing.assert_array_equal(file.read("deep", (1, 2)), ARRAYS["deep"][1, 2])
    np.testing.assert_array_equal(file.read("bfloat16"), ARRAYS["bfloat16"])


def test_every_dtype_is_read_as_it_was_written(tmp_path: Path) -> None:
    names = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
    names = (*names, "int64", "int32", "int16", "int8", "uint8", "bool")
    arrays = {name: np.arange(6).reshape(2, 3).astype(name) for name in names}
    sizes = {name: (array.dtype, array.shape) for name, array in arrays.items()}
    with SafetensorsWriter(tmp_path / "e.safetensors", sizes) as writer:
        for name, array in arrays.items():
            writer.write(name, array)
    file = SafetensorsFile(tmp_path / "e.safetensors")
    for name, array in arrays.items():
        assert file.array(name).dtype == array.dtype
        np.testing.assert_array_equal(file.read(name, (1,)), array[1])


def test_a_transposed_array_is_written_in_order(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    sizes = {"x": (array.dtype, (3, 2))}
    with SafetensorsWriter(tmp_path / "c.safetensors", sizes) as writer:
        writer.write("x", array.T)
    np.testing.assert_array_equal(load_file(tmp_path / "c.safetensors")["x"], array.T)


def test_what_was_not_declared_is_refused(tmp_path: Path) -> None:
    with SafetensorsWriter(tmp_path / "d.safetensors", {"x": (np.dtype("f4"), (3, 2))}) as writer:
        with pytest.raises(ValueError, match=r"x\[1\]: declared as float32 \(2,\)"):
            writer.write("x", np.zeros(3, np.float32), (1,))
        with pytest.raises(ValueError, match="got float64"):
            writer.write("x", np.zeros((3, 2)))


def test_an_array_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("1", "2"):
        save_file({"x": np.zeros(2, np.float32)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(ConfigError, match="x is both in"):
        StoredWeights(tmp_path)


def damaged(path: Path, name: str) -> None:
    """Flips one bit in the data of an array."""
    info = SafetensorsFile(path).tensors[name]
    content = bytearray(path.read_bytes())
    content[info.offset + info.size // 2] ^= 16
    path.write_bytes(content)


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "bfloat16", "float8_e4m3fn", "int8", "bool"]
)
def test_a_digest_is_that_of_the_whole_array(tmp_path: Path, dtype: str) -> None:
    """However it was written: by slices, as a scalar, or empty."""
    values = np.arange(24).reshape(2, 3, 4) % 2
    array = values.astype(jnp.dtype(dtype) if dtype != "float64" else np.float64)
    sizes = dict.fromkeys(("whole", "slices"), (array.dtype, array.shape))
    sizes |= {"scalar": (array.dtype, ()), "empty": (array.dtype, (0, 3))}
    with SafetensorsWriter(tmp_path / "a.safetensors", sizes) as writer:
        writer.write("whole", array)
        for row in np.ndindex(2, 3):
            writer.write("slices", array[row], row)
        writer.write("scalar", array[0, 0, 1])
        writer.write("empty", array[:0, :, 0].reshape(0, 3))
    file = SafetensorsFile(tmp_path / "a.safetensors")
    assert file.tensors["whole"].digest == file.tensors["slices"].digest
    for name in sizes:
        file.verify(name)
    damaged(file.path, "slices")
    with pytest.raises(ConfigError, match=r"slices in .* damaged: its digest is"):
        file.verify("slices")


@pytest.mark.parametrize("wanted", ["bfloat16", "float32", "float16"])
@pytest.mark.parametrize("stored", ["bfloat16", "float32"])
def test_damaged_weights_are_not_read(tmp_path: Path, stored: str, wanted: str) -> None:
    array = np.asarray(jnp.arange(64, dtype=stored).reshape(8, 8))
    path = tmp_path / "weights.safetensors"
    with SafetensorsWriter(path, {"w": (array.dtype, array.shape)}) as writer:
        writer.write("w", array)
    like = {"w": jax.ShapeDtypeStruct((8, 8), jnp.dtype(wanted))}
    np.testing.assert_array_equal(StoredWeights(tmp_path).read(like)["w"], array.astype(wanted))
    damaged(path, "w")
    for read in (lambda w: w.read(like), lambda w: w.array("w"), lambda w: w.read_at("w", (0,))):
        with pytest.raises(ConfigError, match=r"w in .* damaged: its digest is"):
            read(StoredWeights(tmp_path))


def test_damaged_weights_are_not_imported(tmp_path: Path) -> None:
    array = np.ones((4, 4), np.float32)
    path = tmp_path / "model.safetensors"
    with SafetensorsWriter(path, {"w": (array.dtype, array.shape)}) as writer:
        writer.write("w", array)
    find_tensors(LocalFolder(tmp_path))["w"].verify()
    damaged(path, "w")
    with pytest.raises(ConfigError, match=r"w in .*model\.safetensors is truncated or damaged"):
        find_tensors(LocalFolder(tmp_path))["w"].verify()
