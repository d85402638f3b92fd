"""Wrong, damaged and hostile files: one message that names tensor and file, and nothing written."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from dovetail.cli import main
from dovetail.models import ModelFamily
from dovetail.runtime import SafetensorsWriter
from tests.interop.files import Arrays, random_tensors, write_model
from tests.interop.tiny_llama import TINY

UP = "model.layers.1.mlp.up_proj.weight"
NORM = "model.norm.weight"


@pytest.fixture
def arrays(llama_family: ModelFamily) -> Arrays:
    return random_tensors(llama_family, TINY)


def refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str], *patterns: str) -> None:
    """Checks that an import of `hf` ends with code 2, these words, and no trace of a run."""
    (tmp_path / "runs").mkdir(exist_ok=True)
    code = main(["import", "hf", str(tmp_path / "hf"), "--to", str(tmp_path / "runs" / "x")])
    message = capsys.readouterr().err
    assert code == 2, message
    assert message.count("dovetail:") == 1
    for pattern in patterns:
        assert re.search(pattern, message), f"{pattern!r} is not in {message!r}"
    assert not list((tmp_path / "runs").iterdir())


def test_a_model_type_that_is_not_known(tmp_path: Path, arrays: Arrays, capsys: Any) -> None:
    write_model(tmp_path / "hf", {**TINY, "model_type": "lama"}, arrays)
    refuse(tmp_path, capsys, "no family for 'lama'", "Did you mean 'llama'")


def test_a_config_without_model_type_or_not_json(
    tmp_path: Path, arrays: Arrays, capsys: Any
) -> None:
    folder = write_model(tmp_path / "hf", {"vocab_size": 3}, arrays)
    refuse(tmp_path, capsys, "config.json: model_type")
    (folder / "config.json").write_text("{")
    refuse(tmp_path, capsys, "config.json cannot be read as JSON")
    (folder / "config.json").unlink()
    refuse(tmp_path, capsys, "config.json: there is no such file")


def test_what_the_family_lacks(tmp_path: Path, arrays: Arrays, capsys: Any) -> None:
    write_model(tmp_path / "hf", {**TINY, "hidden_act": "strange_act"}, arrays)
    refuse(tmp_path, capsys, "hidden_act", "strange_act")


def test_a_missing_tensor(tmp_path: Path, arrays: Arrays, capsys: Any) -> None:
    del arrays[UP]
    write_model(tmp_path / "hf", TINY, arrays)
    refuse(tmp_path, capsys, re.escape(UP), "no file in .*hf has this tensor")


def test_an_extra_tensor(tmp_path: Path, arrays: Arrays, capsys: Any) -> None:
    arrays["model.layers.1.mlp.up_proj.bias"] = np.ones(24, np.float32)
    write_model(tmp_path / "hf", TINY, arrays)
    refuse(tmp_path, capsys, r"up_proj.bias in .*model.safetensors", "has no such tensor")


def test_a_wrong_shape(tmp_path: Path, arrays: Arrays, capsys: Any) -> None:
    arrays[UP] = arrays[UP].T.copy()
    write_model(tmp_path / "hf", TINY, arrays)
    refuse(tmp_path, capsys, rf"{UP} in .*model.safetensors", r"\(16, 24\)", r"\(24, 16\)")


def test_integer_weights_are_refused(tmp_path: Path, arrays: Arrays, capsys: Any) -> None:
    arrays[UP] = arrays[UP].astype(np.int32)
    write_model(tmp_path / "hf", TINY, arrays)
    refuse(tmp_path, capsys, UP, "expected a floating-point dtype, got int32")


def test_a_tensor_in_two_files(tmp_path: Path, arrays: Arrays, capsys: Any) -> None:
    folder = write_model(tmp_path / "hf", TINY, arrays, shards=2)
    second = folder / "model-00002-of-00002.safetensors"
    part = dict(list(arrays.items())[1::2])
    save_file({**part, "model.embed_tokens.weight": arrays["model.embed_tokens.weight"]}, second)
    refuse(tmp_path, capsys, "model.embed_tokens.weight is in .*00002-of.* and again in .*00001-of")


def test_an_index_that_promises_too_much(tmp_path: Path, arrays: Arrays, capsys: Any) -> None:
    folder = write_model(tmp_path / "hf", TINY, arrays, shards=2)
    part = dict(list(arrays.items())[1::2])
    gone = next(iter(part))
    del part[gone]
    save_file(part, folder / "model-00002-of-00002.safetensors")
    refuse(tmp_path, capsys, f"{gone} should be in .*00002-of-00002")
    (folder / "model-00002-of-00002.safetensors").unlink()
    refuse(tmp_path, capsys, "00002-of-00002.safetensors: there is no such file")


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "..", "a/b", "a\\b", ""])
def test_an_index_that_points_outside(
    tmp_path: Path, arrays: Arrays, capsys: Any, name: str
) -> None:
    folder = write_model(tmp_path / "hf", TINY, arrays, shards=2)
    save_file(arrays, tmp_path / "secret.safetensors")
    file = folder / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    index["weight_map"][UP] = name
    file.write_text(json.dumps(index))
    refuse(tmp_path, capsys, "leads outside of the folder")


def test_a_link_that_points_outside(tmp_path: Path, arrays: Arrays, capsys: Any) -> None:
    folder = write_model(tmp_path / "hf", TINY, arrays)
    (folder / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    (folder / "model.safetensors").symlink_to(tmp_path / "elsewhere.safetensors")
    refuse(tmp_path, capsys, "is a link to .*elsewhere.*outside of its folder")


def test_links_of_the_hubs_cache_are_followed(tmp_path: Path, arrays: Arrays) -> None:
    folder = write_model(tmp_path / "models--a--b" / "snapshots" / "0123", TINY, arrays)
    (tmp_path / "models--a--b" / "blobs").mkdir()
    blob = tmp_path / "models--a--b" / "blobs" / "4567"
    (folder / "model.safetensors").rename(blob)
    (folder / "model.safetensors").symlink_to(blob)
    assert main(["import", "hf", str(folder), "--to", str(tmp_path / "run")]) == 0


@pytest.mark.parametrize("index", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}'])
def test_an_index_of_another_form(tmp_path: Path, arrays: Arrays, capsys: Any, index: str) -> None:
    folder = write_model(tmp_path / "hf", TINY, arrays, shards=2)
    (folder / "model.safetensors.index.json").write_text(index)
    refuse(tmp_path, capsys, "index.json: expected a")


def test_no_weights_or_pickled_ones(tmp_path: Path, arrays: Arrays, capsys: Any) -> None:
    folder = write_model(tmp_path / "hf", TINY, arrays)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refuse(tmp_path, capsys, "no .safetensors file", "can run code and are not read")


def test_an_unknown_quantization_is_refused(tmp_path: Path, arrays: Arrays, capsys: Any) -> None:
    write_model(tmp_path / "hf", {**TINY, "quantization_config": {"quant_method": "x"}}, arrays)
    refuse(tmp_path, capsys, "quant_method is 'x'", "mxfp4")


def test_an_existing_run_is_not_overwritten(tmp_path: Path, arrays: Arrays, capsys: Any) -> None:
    write_model(tmp_path / "hf", TINY, arrays)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious").touch()
    assert main(["import", "hf", str(tmp_path / "hf"), "--to", str(tmp_path / "run")]) == 2
    assert "exists already" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["precious"]


def test_a_failure_in_the_middle_leaves_nothing(
    tmp_path: Path, arrays: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dovetail.interop import hf_import, import_hf

    write_model(tmp_path / "hf", TINY, arrays)
    count = 0

    def fail(*arguments: Any) -> None:
        nonlocal count
        count += 1
        if count > 5:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(hf_import.SafetensorsWriter, "write", fail)
    with pytest.raises(OSError, match="No space"):
        import_hf(str(tmp_path / "hf"), tmp_path / "runs" / "x", progress=False)
    assert not list((tmp_path / "runs").iterdir())


def rewrite(
    change: Callable[[dict[str, Any], bytes], tuple[bytes, bytes]],
) -> Callable[[bytes], bytes]:
    """Returns a function from a file to another one, given what to do with header and body."""

    def apply(data: bytes) -> bytes:
        length = struct.unpack("<Q", data[:8])[0]
        header, body = change(json.loads(data[8 : 8 + length]), data[8 + length :])
        return struct.pack("<Q", len(header)) + header + body

    return apply


def with_entry(**changes: Any) -> Callable[[bytes], bytes]:
    def change(header: dict[str, Any], body: bytes) -> tuple[bytes, bytes]:
        header[NORM] |= changes
        return json.dumps(header).encode(), body

    return rewrite(change)


def overlapping(header: dict[str, Any], body: bytes) -> tuple[bytes, bytes]:
    twin = next(n for n in header if n != NORM and header[n]["shape"] == header[NORM]["shape"])
    assert header[NORM]["data_offsets"][1] == len(body), "it is the last"
    header[NORM]["data_offsets"] = header[twin]["data_offsets"]
    return json.dumps(header).encode(), body[:-64]


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "it has 0 bytes"),
    "only a length": (lambda data: data[:8], "its header should be"),
    "an endless header": (lambda data: b"\xff" * 8 + data[8:], "its header should be"),
    "a cut header": (lambda data: data[:100], "its header should be"),
    "a cut body": (lambda data: data[:-10], "should end at byte .* but the file ends at"),
    "a longer body": (lambda data: data + b"1234", "4 bytes at its end belong to nothing"),
    "no JSON": (rewrite(lambda header, body: (b"{nonsense", body)), "header cannot be read"),
    "a list": (rewrite(lambda header, body: (b"[1]", body)), "not a JSON object"),
    "deep JSON": (rewrite(lambda header, body: (b"[" * 100_000, body)), "header cannot be read"),
    "not UTF-8": (rewrite(lambda header, body: (b"\xff\xfe{}", body)), "header cannot be read"),
    "twice": (
        rewrite(lambda header, body: (b'{"a": 1, "a": 2}', body)),
        "'a' occurs twice",
    ),
    "far away": (with_entry(data_offsets=[10**15, 10**15 + 64]), f"{NORM} should end at byte"),
    "backwards": (with_entry(data_offsets=[64, 0]), f"{NORM} has -64 bytes"),
    "negative": (with_entry(data_offsets=[-64, 0]), f"does not describe {NORM}"),
    "a fraction": (with_entry(shape=[1.5]), f"does not describe {NORM}"),
    "true": (with_entry(shape=[True, 16]), f"does not describe {NORM}"),
    "a huge shape": (with_entry(shape=[10**12, 10**12]), f"{NORM} has 64 bytes, which is not"),
    "an unknown type": (with_entry(dtype="F7"), f"{NORM} in .*its dtype 'F7' is not supported"),
    "no type": (with_entry(dtype=None), f"{NORM} in .*its dtype None is not supported"),
    "overlap": (rewrite(overlapping), "overlaps with"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_files(tmp_path: Path, arrays: Arrays, capsys: Any, kind: str) -> None:
    damage, message = DAMAGE[kind]
    file = write_model(tmp_path / "hf", TINY, arrays) / "model.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    refuse(tmp_path, capsys, "hf/model.safetensors", message)


def test_a_config_of_another_form(tmp_path: Path, arrays: Arrays, capsys: Any) -> None:
    write_model(tmp_path / "hf", {**TINY, "num_hidden_layers": "2"}, arrays)
    refuse(tmp_path, capsys, "hf/config.json does not describe a llama model", "TypeError")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("hidden_size", "big", r"a whole number, such as \d+, got 'big'"),
        ("num_hidden_layers", 2.5, r"a whole number, such as \d+, got 2.5"),
        ("rms_norm_eps", "tiny", r"a number, such as \S+, got 'tiny'"),
    ],
)
def test_a_wrong_type_is_reported_with_the_key_of_the_file(
    tmp_path: Path, arrays: Arrays, capsys: Any, key: str, value: Any, expected: str
) -> None:
    write_model(tmp_path / "hf", {**TINY, key: value}, arrays)
    refuse(tmp_path, capsys, r"hf/config.json\b", f"{key}: expected {expected}")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("rms_norm_eps", float("nan"), "rms_norm_eps: expected a finite number, got nan"),
        ("unread", {"factor": float("inf")}, "unread.factor: expected a finite number, got inf"),
        ("torch_dtype", "float7", "torch_dtype: expected a dtype such as 'bfloat16', got 'float7'"),
        ("dtype", 16, "dtype: expected a dtype such as 'bfloat16', got 16"),
    ],
)
def test_a_value_that_is_no_number_or_no_dtype(
    tmp_path: Path, arrays: Arrays, capsys: Any, key: str, value: Any, words: str
) -> None:
    write_model(tmp_path / "hf", {**TINY, key: value}, arrays)
    refuse(tmp_path, capsys, f"config.json: {words}")


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "torch.float16", "auto", None])
def test_dtypes_that_exist_are_accepted(tmp_path: Path, arrays: Arrays, dtype: str | None) -> None:
    folder = write_model(tmp_path / "hf", {**TINY, "torch_dtype": dtype}, arrays)
    assert main(["import", "hf", str(folder), "--to", str(tmp_path / "run")]) == 0


def test_a_folder_without_a_model(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "hf").mkdir()
    refuse(tmp_path, capsys, "hf/config.json: there is no such file", "this one is empty")
    (tmp_path / "hf" / "readme.md").write_text("nothing")
    refuse(tmp_path, capsys, r"\*.safetensors; this one has only readme.md")


def test_the_known_families_are_listed_once(tmp_path: Path, arrays: Arrays, capsys: Any) -> None:
    write_model(tmp_path / "hf", {**TINY, "model_type": "zzz"}, arrays)
    (tmp_path / "runs").mkdir()
    assert main(["import", "hf", str(tmp_path / "hf"), "--to", str(tmp_path / "runs" / "x")]) == 2
    message = capsys.readouterr().err
    assert "hf/config.json: model_type: there is no family for 'zzz'" in message
    assert message.count("Known: ") == 1
    assert message.count("llama") == 1


def test_fp8_without_its_scales(tmp_path: Path, arrays: Arrays, capsys: Any) -> None:
    folder = write_model(tmp_path / "hf", TINY, {})
    sizes = {name: (array.dtype, array.shape) for name, array in arrays.items()}
    sizes[UP] = (np.dtype(ml_dtypes.float8_e4m3fn), arrays[UP].shape)
    with SafetensorsWriter(folder / "model.safetensors", sizes) as writer:
        for name, array in arrays.items():
            writer.write(name, array.astype(sizes[name][0]))
    refuse(tmp_path, capsys, UP, "which needs scales")
