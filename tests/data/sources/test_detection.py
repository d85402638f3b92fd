"""Formats are recognized from the first bytes and the name; a mistake is answered with advice."""

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest

from dovetail.config import ConfigError, from_text, to_text
from dovetail.data import Files, TextFiles
from dovetail.data.sources import FileFormat, FileHead, JSONLines, Parquet, PlainText
from dovetail.data.sources.detection import FORMATS, detect
from tests.data.sources.writers import (
    WRITERS,
    read,
    read_ids,
    write_jsonl,
    write_megatron,
    write_parquet,
    write_starts,
)

LINES = b'{"a": 1}\n{"a": 2}\n'


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("a.txt", b"plain", "PlainText"),
        ("a.txt", LINES, "JSONLines"),
        ("a", LINES, "JSONLines"),
        ("a.txt", b'{"a": 1}\n', "PlainText"),
        ("a.json", b'{"a": 1}\n', "JSONLines"),
        ("a.json", b'{\n  "a": 1\n}\n', None),
        ("a.json", b'[{"a": 1}]', None),
        ("a.txt", b'{"a": 1} # a comment\n{}\n', "PlainText"),
        ("a.jsonl", b"broken\n", "JSONLines"),
        ("a.NDJSON", b"broken \xff\n", "JSONLines"),
        ("a.jsonl", b"PAR1 by its bytes", "Parquet"),
        ("a.json", b'{"a": "' + b"x" * FileHead.HEAD_BYTES, "JSONLines"),
        ("a.gz", gzip.compress(LINES, mtime=0), "JSONLines"),
        ("a.jsonl.gz", gzip.compress(b"broken", mtime=0), "JSONLines"),
        ("a.jsonl.gz", gzip.compress(LINES, mtime=0)[:5], "JSONLines"),
        ("a.txt.gz", gzip.compress(b"text", mtime=0), None),
        ("a.md", b"caf\xe9", "PlainText"),
        ("a.dat", b"caf\xe9", None),
        ("a.txt", b"\0", None),
        ("a.txt", "é".encode()[:1] * 3, "PlainText"),
        ("a", ("x" * (FileHead.HEAD_BYTES - 1) + "é").encode()[: FileHead.HEAD_BYTES], "PlainText"),
        ("a.arrow", b"\xff\xff\xff\xff\x00\x00\x00\x00", None),
        ("a.bin", b"MMIDIDX\0\0", "MegatronTokens"),
        ("a", b"\x93NUMPY", "NumPyTokens"),
        ("a.png", b"\x89PNG\r\n\x1a\n", None),
    ],
)
def test_the_format_of_first_bytes(name: str, data: bytes, expected: str | None) -> None:
    found = detect(FileHead(name, data, is_cut=len(data) >= FileHead.HEAD_BYTES))
    assert (found and found.__name__) == expected


@pytest.mark.parametrize("name", WRITERS)
def test_the_bytes_decide_whatever_the_name(name: str, tmp_path: Path) -> None:
    path = WRITERS[name](tmp_path, ["one", "two", "three"])
    assert list(read(path.rename(tmp_path / "data")).values()) == ["one", "two", "three"]


def test_a_format_is_a_component_that_text_names(tmp_path: Path) -> None:
    config = Files.Config(files="x", format=Parquet.Config())
    assert from_text(to_text(config)) == config
    assert {each.__name__ for each in FORMATS} <= {
        each.__name__ for each in FileFormat.__subclasses__()
    } | {"MegatronTokens", "NumPyTokens"}


def test_json_lines_are_not_trained_on_as_text(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path, ["a", "b"])
    message = rf"{path} looks like JSON Lines, not text. Write corpus=Files corpus.files={path} "
    for config in (
        TextFiles.Config(files=str(path)),
        Files.Config(files=str(path), format=PlainText.Config()),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            list(config.build().documents())
        with pytest.raises(ConfigError, match=r"\(or corpus\.format=JSONLines\)"):
            config.build().fingerprint()


@pytest.mark.parametrize("name", WRITERS)
def test_text_files_refuse_every_other_format(name: str, tmp_path: Path) -> None:
    path = WRITERS[name](tmp_path, ["a", "b"])
    with pytest.raises(ConfigError, match=r"looks like .*, not text"):
        TextFiles.Config(files=str(path)).build().shards()


def test_the_advice_has_the_path_of_the_corpus(tmp_path: Path) -> None:
    from dovetail.data import ByteTokenizer, TokenInput

    path = write_parquet(tmp_path, ["a"])
    corpus = TextFiles.Config(files=str(path))
    data = TokenInput.Config(
        corpus=corpus, tokenizer=ByteTokenizer.Config(), sequence_length=8, batch_size=1
    )
    with pytest.raises(ConfigError, match=r"Write corpus=Files corpus\.files="):
        data.build().prepare(progress=False)


def test_a_wrong_format_by_name(tmp_path: Path) -> None:
    path = write_parquet(tmp_path, ["a"])
    with pytest.raises(ConfigError, match=r"looks like Parquet, not JSON Lines.*format=Parquet"):
        read(path, format=JSONLines.Config())
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(
        ConfigError, match=r"a\.txt cannot be read as Parquet: Parquet file size is 4"
    ):
        read(tmp_path / "a.txt", format=Parquet.Config())


def test_a_mixture_is_refused_with_counts(tmp_path: Path) -> None:
    write_jsonl(tmp_path, ["a", "b"])
    (tmp_path / "y.jsonl").write_bytes(LINES)
    (tmp_path / "README.md").write_text("about the data")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(ConfigError) as caught:
        read(tmp_path)
    assert str(caught.value) == (
        "corpus.files: the files have several formats: 1 file of text (such as README.md), 1 file "
        "of no known format (such as picture.png), 2 files of JSON Lines (such as x.jsonl). Take "
        "those of one format, such as corpus.include='**/*.jsonl', or leave some out with "
        "corpus.exclude."
    )
    assert set(read(tmp_path, include="**/x*.jsonl")) == {"x.jsonl#1", "x.jsonl#2"}
    assert set(read(tmp_path, exclude=("*.png", "y*", "*.md"))) == {"x.jsonl#1", "x.jsonl#2"}


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (
            "a.txt.gz",
            gzip.compress(b"text", mtime=0),
            "compressed with gzip, and holds no JSON Lines; deco",
        ),
        ("a.zip", b"PK\x03\x04....\0", "looks like a zip archive; unpack it"),
        ("a.jsonl", "{}".encode("utf-16"), "looks like UTF-16 text; convert it to UTF-8"),
        ("a.bin", b"\0\1", "token ids of Megatron are named by their .idx"),
        ("a.png", b"\x89PNG\r\n\x1a\n", "begins with the bytes 89 50 4e 47 0d 0a 1a 0a"),
    ],
)
def test_an_unknown_format(name: str, data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=f"is of no known format: .*{re.escape(message)}"):
        read(tmp_path)


def test_a_json_document_is_no_corpus(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([{"text": "a"}, {"text": "b"}], indent=1))
    with pytest.raises(ConfigError, match=r"one JSON document, .*jq -c '\.\[\]' a\.json"):
        read(tmp_path)
    assert read(tmp_path, format=PlainText.Config())  # code, for example


def test_parts_of_other_files_are_no_files(tmp_path: Path) -> None:
    write_megatron(tmp_path, [[[1]], [[2, 3]]])
    assert read_ids(tmp_path) == {"x.idx#0": [1], "x.idx#1": [2, 3]}
    (tmp_path / "x.idx").unlink()
    (tmp_path / "x.bin").unlink()
    write_starts(tmp_path, [[1], [2, 3]])
    assert read_ids(tmp_path) == {"x.npy#0": [1], "x.npy#1": [2, 3]}


def test_a_format_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "a.up").write_text("a")
    format = Upper.Config()
    assert read(tmp_path, format=format) == {"a.up": "A"}
    assert Files.Config(files=str(tmp_path), format=format).build().fingerprint().endswith("/upper")


class Upper(FileFormat):
    title = "capitals"

    def recognizes(self, head):
        return True

    def read(self, file, shard, settings):
        from dovetail.data import Document

        yield Document(file.name, file.head(10).decode().upper())

    def identity(self, settings):
        return "upper"


def test_a_file_that_is_all_zeros_is_not_trained_on(tmp_path: Path) -> None:
    np.zeros(100, np.uint8).tofile(tmp_path / "a.txt")
    with pytest.raises(ConfigError, match="no known format"):
        read(tmp_path)
