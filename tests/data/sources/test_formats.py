"""Every format: what was written is read, in one shard or in many, with stable names."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail.config import ConfigError
from dovetail.data import Files
from dovetail.data.interfaces import Document, ShardedCorpus
from dovetail.data.sources import ArrayRecord, MegatronTokens, NumPyTokens
from tests.data.sources.writers import (
    CODES,
    WRITERS,
    read,
    read_ids,
    read_shards,
    write_array_record,
    write_dataset,
    write_jsonl,
    write_megatron,
    write_starts,
)

TEXTS = [
    "the first",
    "",
    "a second: héé 日本語 😀",
    "line\nends\r\n",
    "\0 zero",
    "x" * 5000,
    "last",
]
SLOW = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
# json.dumps writes half of a surrogate pair, which is no text.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@pytest.mark.parametrize("name", WRITERS)
def test_what_was_written_is_read(name: str, tmp_path: Path) -> None:
    path = WRITERS[name](tmp_path, TEXTS)
    first = 1 if "json" in path.name else 0  # lines are counted from 1, rows from 0
    expected = {f"{path.name}#{number}": text for number, text in enumerate(TEXTS, first)}
    assert read(path) == expected
    assert read(tmp_path) == expected


@pytest.mark.parametrize("name", WRITERS)
def test_a_corpus_of_files_has_shards(name: str, tmp_path: Path) -> None:
    assert isinstance(Files.Config(files=str(tmp_path)).build(), ShardedCorpus)
    path = WRITERS[name](tmp_path, TEXTS)
    (shard, *_) = Files.Config(files=str(path)).build().shards()
    assert shard.file == path.name
    assert shard.size > 0


@pytest.mark.parametrize("name", WRITERS)
@SLOW
@given(texts=st.lists(TEXT, min_size=1, max_size=30), shard_bytes=st.integers(1, 2000))
def test_all_shards_together_are_the_whole(
    name: str, texts: list[str], shard_bytes: int, tmp_path: Path, cache_folder: Path
) -> None:
    path = WRITERS[name](tmp_path, texts)
    whole = list(Files.Config(files=str(path)).build().documents())
    found, _ = read_shards(path, shard_bytes=shard_bytes)
    assert found == whole
    assert [each.text for each in whole] == texts


@SLOW
@given(
    documents=st.lists(st.lists(st.lists(st.integers(0, 99), max_size=5), max_size=3), max_size=20),
    shard_bytes=st.integers(1, 60),
    code=st.sampled_from(sorted(CODES)),
)
def test_megatron(
    documents: list[list[list[int]]], shard_bytes: int, code: int, tmp_path: Path
) -> None:
    path = write_megatron(tmp_path, documents, code)
    expected = [[i for sequence in each for i in sequence] for each in documents]
    found, _ = read_shards(path, shard_bytes=shard_bytes)
    assert [each.name for each in found] == [f"x.idx#{i}" for i in range(len(documents))]
    assert [each.ids.tolist() for each in found if isinstance(each, Document)] == expected
    assert all(each.ids.dtype == np.int32 for each in found if isinstance(each, Document))


@SLOW
@given(
    documents=st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1, max_size=20),
    shard_bytes=st.integers(1, 60),
)
def test_numpy_with_starts(documents: list[list[int]], shard_bytes: int, tmp_path: Path) -> None:
    found, _ = read_shards(write_starts(tmp_path, documents), shard_bytes=shard_bytes)
    assert [each.ids.tolist() for each in found if isinstance(each, Document)] == documents
    assert read_ids(tmp_path) == {f"x.npy#{i}": ids for i, ids in enumerate(documents)}


def test_numpy_rows(tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.int64).reshape(4, 3)
    np.save(tmp_path / "rows.npy", rows)
    assert list(read_ids(tmp_path).values()) == rows.tolist()
    np.save(tmp_path / "rows.npy", np.zeros((4, 0), np.int64))
    assert read_ids(tmp_path) == {}


def test_the_id_at_the_end_of_documents_is_left_out(tmp_path: Path) -> None:
    path = write_megatron(tmp_path, [[[1, 2, 0]], [[3, 0], [0, 4]], [[0]]])
    found = read_ids(path, format=MegatronTokens.Config(end_of_document=0))
    assert list(found.values()) == [[1, 2], [3, 0, 0, 4], []]
    np.save(tmp_path / "rows.npy", [[5, 0], [5, 6]])
    rows = read_ids(tmp_path / "rows.npy", format=NumPyTokens.Config(end_of_document=0))
    assert list(rows.values()) == [[5], [5, 6]]


@pytest.mark.parametrize("size", [1, 50, 300, 10**6])
def test_a_plain_file_is_cut_at_line_ends(size: int, tmp_path: Path, cache_folder: Path) -> None:
    path = write_jsonl(tmp_path, [str(n) * (n % 40) for n in range(100)])
    data = path.read_bytes()
    shards = Files.Config(files=str(path), shard_bytes=size).build().shards()
    pieces = [data[shard.start : shard.stop] for shard in shards]
    assert b"".join(pieces) == data
    assert all(piece.endswith(b"\n") for piece in pieces)
    assert len(pieces) >= min(len(data) // (size + 100), 99)


def test_the_index_of_lines_is_cached(
    tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dovetail.data.sources.formats import line_index

    path = write_jsonl(tmp_path, TEXTS)
    before, count = read_shards(path, shard_bytes=30)
    assert count > 3
    monkeypatch.setattr(line_index, "_count", lambda *arguments: pytest.fail("read again"))
    assert read_shards(path, shard_bytes=30)[0] == before


def test_blank_lines_count_but_are_no_records(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "a"}\r\n\r\n\n{"content": "b"}')
    assert read(path) == {"x.jsonl#1": "a", "x.jsonl#4": "b"}


def test_a_folder_that_datasets_saved(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path, TEXTS)
    (folder / "cache-1.arrow").write_bytes(b"what datasets leaves in a folder")
    found = read(folder)
    assert list(found.values()) == TEXTS
    assert next(iter(found)) == "data-00000-of-00002.arrow#0"


def test_the_splits_of_a_dataset_dict(tmp_path: Path) -> None:
    import datasets

    def split(*texts: str) -> datasets.Dataset:
        return datasets.Dataset.from_dict({"text": list(texts)})

    both = datasets.DatasetDict(train=split("a", "b"), validation=split("c"))
    both.save_to_disk(str(tmp_path / "both"))
    assert list(read(tmp_path / "both").values()) == ["a", "b"]
    assert list(read(tmp_path / "both" / "validation").values()) == ["c"]
    datasets.DatasetDict(test=split("a")).save_to_disk(str(tmp_path / "other"))
    with pytest.raises(
        ConfigError, match=r"without the split 'train'; it has test. Name one.*test"
    ):
        read(tmp_path / "other")


def test_array_records_are_text_or_objects(tmp_path: Path) -> None:
    path = write_array_record(tmp_path, [json.dumps({"page": {"body": t}}) for t in ("a", "b")])
    with pytest.raises(ConfigError, match=r"records are JSON objects with the columns 'page'"):
        read(path)
    assert list(read(path, text="page.body").values()) == ["a", "b"]
    assert list(read(path, text="page.body", format=ArrayRecord.Config()).values()) == ["a", "b"]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary()]
)
def test_columns_of_every_kind_of_text(kind: pa.DataType, tmp_path: Path) -> None:
    texts = [text.encode() for text in TEXTS] if "binary" in str(kind) else TEXTS
    column = pa.array(texts, kind)
    schema = pa.schema([("text", kind)])
    with pa.ipc.new_stream(tmp_path / "x.arrow", schema) as writer:
        writer.write_table(pa.table([column], schema))
    assert list(read(tmp_path).values()) == TEXTS


def test_dictionaries_and_structs(tmp_path: Path) -> None:
    texts = pa.array(["a", "b", "a"]).dictionary_encode()
    pages = pa.array([{"title": "t", "n": 1}] * 3)
    pq.write_table(pa.table({"text": texts, "page": pages}), tmp_path / "x.parquet")
    assert list(read(tmp_path).values()) == ["a", "b", "a"]
    both = read(tmp_path, text="{page.title}: {text}")
    assert list(both.values()) == ["t: a", "t: b", "t: a"]
