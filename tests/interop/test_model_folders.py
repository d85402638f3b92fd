"""Model folders: fsspec, the Hub, symbolic links, atomic creation, and memory for large files."""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dovetail.cli import main
from dovetail.config import ConfigError
from dovetail.interop import import_hf
from dovetail.interop.model_folders import LocalFolder, new_folder, open_folder
from dovetail.models import ModelFamily
from dovetail.runtime import StoredWeights
from tests.interop.files import random_tensors, write_model
from tests.interop.tiny_llama import TINY


@pytest.fixture
def source(llama_family: ModelFamily, tmp_path: Path) -> Path:
    return write_model(tmp_path / "hf", TINY, random_tensors(llama_family, TINY), shards=2)


def test_anything_that_fsspec_reaches(source: Path, tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(str(source), "/models/tiny", recursive=True)
    import_hf("memory://models/tiny", tmp_path / "remote", progress=False)
    import_hf(str(source), tmp_path / "local", progress=False)
    remote, local = (
        tmp_path / name / "weights" / "00001.safetensors" for name in ("remote", "local")
    )
    assert remote.read_bytes() == local.read_bytes()
    with pytest.raises(ConfigError, match="no such folder"):
        import_hf("memory://models/other", tmp_path / "run", progress=False)
    with pytest.raises(ConfigError, match="cannot be reached"):
        import_hf("nonsense://models", tmp_path / "run", progress=False)


def test_the_hub_where_its_library_is_installed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def snapshot_download(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((name, revision))
        assert not any(pattern.endswith((".py", ".bin")) for pattern in allow_patterns)
        if name == "org/none":
            raise OSError("no network")
        return str(source)

    hub = ModuleType("huggingface_hub")
    hub.snapshot_download = snapshot_download  # type: ignore[attr-defined]  # a stand-in
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    import_hf("hub:org/name@v1", tmp_path / "run", progress=False)
    assert asked == [("org/name", "v1")]
    with pytest.raises(ConfigError, match="cannot be fetched: no network"):
        import_hf("hub:org/none", tmp_path / "run2", progress=False)


def test_the_hub_where_it_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"dovetail\[hub\]"):
        import_hf("hub:org/name", tmp_path / "run", progress=False)


def test_a_name_of_the_hub_without_its_prefix_gets_a_hint(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="write hub:org/name"):
        import_hf("org/name", tmp_path / "run", progress=False)


def test_what_a_killed_import_left_is_removed(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], check=True, capture_output=True
    )
    host = re.sub(r"[^\w.]", "_", socket.gethostname())
    left = tmp_path / f".run.part-{host}-{int(ended.stdout)}"
    left.mkdir()
    alive = tmp_path / f".run.part-{host}-1"
    alive.mkdir()
    with new_folder(tmp_path / "run") as folder:
        (folder / "file").touch()
        assert not (tmp_path / "run").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"run", alive.name}


INTERRUPTED = """
import signal, sys
from pathlib import Path
from dovetail.interop.model_folders import LocalFolder, open_folder, new_folder
signal.signal(signal.SIGTERM, lambda *_: __import__("os")._exit(75))
with new_folder(Path(sys.argv[1])) as folder:
    (folder / "file").touch()
    signal.raise_signal(signal.SIGTERM)
"""


def test_a_signal_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "run")]
    assert subprocess.run(command, check=False).returncode == 75
    assert list(tmp_path.iterdir()) == []
    with new_folder(tmp_path / "run"):
        pass
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_links_are_not_followed_in_file_urls_either(tmp_path: Path) -> None:
    assert isinstance(open_folder(f"file://{tmp_path}"), LocalFolder)


@pytest.mark.parametrize("verb", ["import", "export"])
def test_a_new_folder_is_a_local_one(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([verb, "hf", "somewhere", "--to", "gs://bucket/model"])
    assert caught.value.code == 2
    assert "expected a folder on this machine, got 'gs://bucket/model'" in capsys.readouterr().err


WIDTH, HIDDEN, LAYERS = 1024, 8192, 20
MEASURE = """
import resource, sys
from pathlib import Path
from tests.interop.tiny_llama import ensure_llama
from tests.interop.test_model_folders import TINY
from dovetail.interop import import_hf
from dovetail.run import Run
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
ensure_llama().from_hf(TINY).build()
before = peak()
import_hf(sys.argv[1], Path(sys.argv[2]), progress=False)
imported = peak()
Run(Path(sys.argv[2])).export_hf(Path(sys.argv[3]), progress=False)
print(imported - before, peak() - before)
"""


def write_sparse(llama_family: ModelFamily, folder: Path) -> tuple[int, int]:
    """Writes a sparse file of zeros; returns the size of the model and of its largest tensor."""
    from dovetail.interop import model_tensors

    hf_config = {
        **TINY,
        "hidden_size": WIDTH,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "vocab_size": 32_000,
    }
    tensors = model_tensors(llama_family, llama_family.from_hf(hf_config).build())
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(hf_config))
    header, offset, sizes = {}, 0, []
    for name, tensor in tensors.items():
        sizes.append(math.prod(tensor.shape) * 2)
        offsets = [offset, offset + sizes[-1]]
        header[name] = {"dtype": "BF16", "shape": tensor.shape, "data_offsets": offsets}
        offset += sizes[-1]
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + offset)
    return offset, max(sizes)


@pytest.mark.slow
def test_memory_grows_by_tensors_and_not_by_models(
    llama_family: ModelFamily, tmp_path: Path
) -> None:
    total, largest = write_sparse(llama_family, tmp_path / "hf")
    limit = 2 * largest + 500 * 2**20
    assert total > 1.5 * limit, "else this would prove nothing"
    command = [sys.executable, "-c", MEASURE, *(str(tmp_path / n) for n in ("hf", "run", "out"))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    growth_of_import, growth_of_both = map(int, done.stdout.split())
    assert growth_of_import < limit
    assert growth_of_both < limit
    sizes = StoredWeights(tmp_path / "run" / "weights").shapes
    assert sum(math.prod(shape) for shape in sizes.values()) * 2 == total
    for name in ("run", "out"):  # pytest would keep gigabytes
        shutil.rmtree(tmp_path / name)
