"""Which files a corpus has, what they are called, and what its fingerprint depends on."""

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import fsspec
import pytest

from dovetail.config import ConfigError, StorageError
from dovetail.data import Files
from dovetail.data.sources import fingerprint as fingerprint_module
from tests.data.sources.writers import (
    json_lines,
    read,
    read_shards,
    write_jsonl,
    write_megatron,
    write_parquet,
)
from tests.runtime.test_object_store import free_port, s3_server


def lines(folder: Path, name: str, *texts: str) -> Path:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(json_lines(texts))
    return folder / name


def test_several_files_of_one_folder(tmp_path: Path) -> None:
    one, two = lines(tmp_path, "a.jsonl", "1"), lines(tmp_path, "b.jsonl", "2")
    corpus = Files.Config(files=(str(two), str(one))).build()
    assert [each.name for each in corpus.documents()] == ["a.jsonl#1", "b.jsonl#1"]


def test_several_folders_keep_their_names_apart(tmp_path: Path) -> None:
    lines(tmp_path, "web/train/a.jsonl", "1")
    lines(tmp_path, "code/train/a.jsonl", "2")
    folders = tuple(str(tmp_path / name / "train") for name in ("web", "code"))
    names = [each.name for each in Files.Config(files=folders).build().documents()]
    assert names == ["code/train/a.jsonl#1", "web/train/a.jsonl#1"]
    files = (str(tmp_path / "web/train/a.jsonl"), str(tmp_path / "code/**/*.jsonl"))
    names = [each.name for each in Files.Config(files=files).build().documents()]
    assert names == ["code/train/a.jsonl#1", "train/a.jsonl#1"]


def test_a_file_that_is_named_twice(tmp_path: Path) -> None:
    path = lines(tmp_path, "a.jsonl", "1")
    with pytest.raises(ConfigError, match=r"files: a\.jsonl is named twice.*Name each file once"):
        Files.Config(files=(str(path), str(tmp_path))).build().shards()


def test_hidden_files_are_left_out(tmp_path: Path) -> None:
    for name in ("a.jsonl", ".hidden.jsonl", "b/.git/c.jsonl", ".d/e.jsonl"):
        lines(tmp_path, name, "1")
    assert list(read(tmp_path)) == ["a.jsonl#1"]
    assert len(read(tmp_path, exclude=())) == 4


def test_a_folder_with_nothing_to_read(tmp_path: Path) -> None:
    lines(tmp_path, "a.jsonl", "1")
    message = r"files: no file in .* matches '\*\.md' .*files that end in \.jsonl. Set include"
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, include="*.md")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_bad": 1.5}, "max_bad: expected a share from 0 to 1, got 1.5."),
        ({"shard_bytes": 0}, "shard_bytes: expected at least 1, got 0."),
        ({"text": "{"}, "text: '{' is not a template"),
        ({"files": ()}, "files: expected at least one file"),
    ],
)
def test_values_out_of_range(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        Files.Config(**{"files": "x", **values}).build()


def test_an_empty_file_has_no_documents(tmp_path: Path) -> None:
    lines(tmp_path, "a.jsonl", "1", "2")
    (tmp_path / "b.jsonl").touch()
    assert len(read(tmp_path)) == 2
    assert read(tmp_path / "b.jsonl") == {}


def fingerprint(path: Path | str, **values: Any) -> str:
    return Files.Config(files=str(path), **values).build().fingerprint()


def test_the_fingerprint_follows_contents_and_what_is_taken(tmp_path: Path) -> None:
    path = lines(tmp_path, "a.jsonl", "1")
    first = fingerprint(path)
    assert fingerprint(path, shard_bytes=10, max_bad=0.5) == first
    assert fingerprint(path, text="id") != first
    path.write_bytes(json_lines(["2"]))
    assert fingerprint(path) != first


def test_the_fingerprint_follows_the_tokens_of_an_index(tmp_path: Path) -> None:
    path = write_megatron(tmp_path, [[[1]]])
    first = fingerprint(path)
    write_megatron(tmp_path, [[[2]]])
    assert fingerprint(path) != first


@pytest.fixture
def memory() -> Iterator[Any]:
    """The file system of memory:// URLs, empty."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def test_files_behind_a_url(memory: Any, cache_folder: Path, tmp_path: Path) -> None:
    memory.pipe("/data/a.jsonl", json_lines(["1", "2", "3"]))
    memory.pipe("/data/deep/b.jsonl", json_lines(["4"]))
    memory.pipe("/data/c.md", b"text")
    assert set(read("memory://data", include="**/*.jsonl")) == {
        *("a.jsonl#1", "a.jsonl#2", "a.jsonl#3", "deep/b.jsonl#1")
    }
    assert set(read("memory://data/*.jsonl")) == {"a.jsonl#1", "a.jsonl#2", "a.jsonl#3"}
    assert read("memory://data/deep/b.jsonl") == {"b.jsonl#1": "4"}
    found, count = read_shards("memory://data/a.jsonl", shard_bytes=10)
    assert ([each.name for each in found], count) == ([f"a.jsonl#{n}" for n in (1, 2, 3)], 3)
    write_parquet(tmp_path, ["5", "6"])
    memory.pipe("/data/x.parquet", (tmp_path / "x.parquet").read_bytes())
    assert read("memory://data/x.parquet") == {"x.parquet#0": "5", "x.parquet#1": "6"}
    assert Files.Config(files="memory://data/my notes").build().name == "my-notes"


def test_the_fingerprint_of_a_url_follows_the_version_of_its_files(memory: Any) -> None:
    memory.pipe("/data/a.jsonl", json_lines(["1"]))
    first = fingerprint("memory://data")
    assert fingerprint("memory://data") == first
    memory.pipe("/data/a.jsonl", json_lines(["2"]))
    assert fingerprint("memory://data") != first


def test_urls_that_cannot_be_used(memory: Any) -> None:
    memory.pipe("/data/a.jsonl", json_lines(["1"]))
    for url, message in (
        ("memory://nothing", "there is no file or folder 'memory://nothing'"),
        ("memory://data/*.md", r"no file in memory://data/\*\.md matches '\*\.md'"),
        ("nowhere://data", "nowhere://data cannot be used: Protocol not known: nowhere"),
        ("memory://data/a.array_record", "there is no file or folder"),
    ):
        with pytest.raises(ConfigError, match=message):
            Files.Config(files=url).build().shards()


def test_megatron_behind_a_url(memory: Any, tmp_path: Path) -> None:
    write_megatron(tmp_path, [[[1, 2]], [[3]]])
    for name in ("x.idx", "x.bin"):
        memory.pipe(f"/data/{name}", (tmp_path / name).read_bytes())
    ids = [each.ids for each in Files.Config(files="memory://data").build().documents()]
    assert [each.tolist() for each in ids if each is not None] == [[1, 2], [3]]


def test_array_records_are_local(memory: Any, tmp_path: Path) -> None:
    from tests.data.sources.writers import write_array_record

    memory.pipe("/x.array_record", write_array_record(tmp_path, ["a"]).read_bytes())
    with pytest.raises(ConfigError, match=r"x\.array_record: .* from a local disk only"):
        read("memory://x.array_record")


def test_an_outage_is_no_mistake_of_the_user(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.pipe("/data/a.jsonl", json_lines(["1"]))
    corpus = Files.Config(files="memory://data").build()
    (shard,) = corpus.shards()

    def fail(*arguments: Any, **options: Any) -> Any:
        raise TimeoutError("the store does not answer")

    monkeypatch.setattr(type(memory), "_open", fail)
    with pytest.raises(StorageError, match=r"cannot read memory://.*a\.jsonl: the store does not"):
        list(corpus.read(shard))


def test_an_object_store(monkeypatch: pytest.MonkeyPatch, cache_folder: Path) -> None:
    pytest.importorskip("s3fs")
    port = free_port()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }.items():
        monkeypatch.setenv(name, value)
    with s3_server(port):
        import s3fs

        system = s3fs.S3FileSystem()
        system.mkdir("corpus")
        system.pipe("corpus/web/a.jsonl", json_lines(["1", "2"]))
        system.pipe("corpus/web/b.jsonl", json_lines(["3"]))
        assert list(read("s3://corpus/web").values()) == ["1", "2", "3"]
        found, count = read_shards("s3://corpus/web/*.jsonl", shard_bytes=10)
        assert (len(found), count) == (3, 3)
        first = fingerprint("s3://corpus/web")
        assert fingerprint("s3://corpus/web") == first
        system.pipe("corpus/web/b.jsonl", json_lines(["4"]))
        s3fs.S3FileSystem.clear_instance_cache()
        assert fingerprint("s3://corpus/web") != first
        with pytest.raises(ConfigError, match="there is no file or folder 's3://corpus/none'"):
            read("s3://corpus/none")


def test_the_hash_of_large_files_is_cached(
    tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_jsonl(tmp_path, ["a"])
    first = fingerprint(path)
    monkeypatch.setattr(fingerprint_module, "_ALWAYS_HASHED_BYTES", 0)
    assert fingerprint(path) == first
    monkeypatch.setattr(fingerprint_module, "_hash_contents", lambda files: pytest.fail("again"))
    assert fingerprint(path) == first


def test_a_file_that_vanishes_is_named(tmp_path: Path) -> None:
    path = lines(tmp_path, "a.jsonl", "1")
    corpus = Files.Config(files=str(path)).build()
    (shard,) = corpus.shards()
    path.unlink()
    with pytest.raises(ConfigError, match=rf"cannot read {path}: No such file.*leave it out"):
        list(corpus.read(shard))
    with pytest.raises(ConfigError, match=r"there is no file 'b.jsonl'. It has been removed"):
        list(corpus.read(type(shard)("b.jsonl")))


def test_a_text_with_a_comma_in_its_name_from_the_command_line(tmp_path: Path) -> None:
    from dovetail.config import apply_overrides

    config = apply_overrides(Files.Config(files="x"), ["files=a,b/*.md", "include=*.md"])
    assert (config.files, config.include) == (("a", "b/*.md"), "*.md")
    config = apply_overrides(config, ["files='a,b'", r"text='{title}\n{body}'"])
    assert (config.files, config.text) == ("a,b", "{title}\n{body}")


def test_a_web_server(tmp_path: Path, cache_folder: Path) -> None:
    lines(tmp_path / "web", "a.jsonl", *map(str, range(100)))
    port = free_port()
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    server = subprocess.Popen([*command, "-d", str(tmp_path / "web")], stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(300):
            with contextlib.suppress(OSError), urlopen(url):
                break
            time.sleep(0.1)
        assert len(read(f"{url}/a.jsonl")) == 100
        assert len(read(f"{url}/")) == 100  # a page with links to the files
        with pytest.raises(StorageError, match=r"a\.jsonl: .*support range requests"):
            read_shards(f"{url}/a.jsonl", shard_bytes=500)
    finally:
        server.kill()
        server.wait()
