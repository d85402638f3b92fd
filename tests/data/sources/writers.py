"""Writes texts in every format, with the libraries that people write them with."""

import gzip
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from array_record.python.array_record_module import ArrayRecordWriter

from dovetail.data import Document, Files
from dovetail.data.interfaces import BadRecord

Writer = Callable[[Path, Sequence[str]], Path]


def json_lines(texts: Sequence[str]) -> bytes:
    return "".join(
        json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts)
    ).encode()


def write_jsonl(folder: Path, texts: Sequence[str]) -> Path:
    (folder / "x.jsonl").write_bytes(json_lines(texts))
    return folder / "x.jsonl"


def write_gzip(folder: Path, texts: Sequence[str]) -> Path:
    (folder / "x.jsonl.gz").write_bytes(gzip.compress(json_lines(texts)))
    return folder / "x.jsonl.gz"


def write_zstandard(folder: Path, texts: Sequence[str]) -> Path:
    """Two frames, as parallel compressors write them."""
    data = json_lines(texts)
    half = len(data) // 2
    frames = [zstandard.ZstdCompressor().compress(each) for each in (data[:half], data[half:])]
    (folder / "x.jsonl.zst").write_bytes(b"".join(frames))
    return folder / "x.jsonl.zst"


def table(texts: Sequence[str]) -> pa.Table:
    return pa.table({"id": range(len(texts)), "text": pa.array(texts, pa.string())})


def write_parquet(folder: Path, texts: Sequence[str]) -> Path:
    pq.write_table(table(texts), folder / "x.parquet", row_group_size=3)
    return folder / "x.parquet"


def write_arrow_file(folder: Path, texts: Sequence[str]) -> Path:
    with pa.ipc.new_file(folder / "x.arrow", table(texts).schema) as writer:
        writer.write_table(table(texts), max_chunksize=2)
    return folder / "x.arrow"


def write_arrow_stream(folder: Path, texts: Sequence[str]) -> Path:
    with pa.ipc.new_stream(folder / "x.arrow", table(texts).schema) as writer:
        writer.write_table(table(texts), max_chunksize=2)
    return folder / "x.arrow"


def write_array_record(folder: Path, texts: Sequence[str]) -> Path:
    writer = ArrayRecordWriter(str(folder / "x.array_record"), "group_size:1")
    for text in texts:
        writer.write(text.encode())
    writer.close()
    return folder / "x.array_record"


def write_dataset(folder: Path, texts: Sequence[str]) -> Path:
    import datasets

    saved = datasets.Dataset.from_dict(
        {"text": list(texts)}, datasets.Features(text=datasets.Value("string"))
    )
    saved.save_to_disk(str(folder / "saved"), num_shards=min(2, max(len(texts), 1)))
    return folder / "saved"


WRITERS: dict[str, Writer] = {
    "jsonl": write_jsonl,
    "gzip": write_gzip,
    "zstandard": write_zstandard,
    "parquet": write_parquet,
    "arrow file": write_arrow_file,
    "arrow stream": write_arrow_stream,
    "array_record": write_array_record,
}

CODES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}


def write_megatron(
    folder: Path, documents: Sequence[Sequence[Sequence[int]]], code: int = 8
) -> Path:
    """Writes documents of sequences of ids, as Megatron's IndexedDatasetBuilder does."""
    sequences = [sequence for document in documents for sequence in document]
    lengths = np.array([len(each) for each in sequences], np.int32)
    size = np.dtype(CODES[code]).itemsize
    offsets = (np.cumsum(lengths, dtype=np.int64) - lengths) * size
    firsts = np.cumsum([0, *map(len, documents)]).astype(np.int64)
    header = b"MMIDIDX\x00\x00" + struct.pack("<QB", 1, code)
    counts = struct.pack("<QQ", len(lengths), len(firsts))
    arrays = lengths.tobytes() + offsets.astype(np.int64).tobytes() + firsts.tobytes()
    (folder / "x.idx").write_bytes(header + counts + arrays)
    (folder / "x.bin").write_bytes(b"".join(np.array(s, CODES[code]).tobytes() for s in sequences))
    return folder / "x.idx"


def write_starts(folder: Path, documents: Sequence[Sequence[int]]) -> Path:
    """Writes one long array, and the starts of its documents."""
    starts = np.cumsum([0, *map(len, documents)])[:-1]
    np.save(folder / "x.npy", np.array([i for each in documents for i in each], np.uint16))
    np.save(folder / "x.starts.npy", starts.astype(np.int64))
    return folder / "x.npy"


def read(path: Path | str, **values: Any) -> dict[str, str]:
    """Returns the texts by their names."""
    return {
        each.name: each.text for each in Files.Config(files=str(path), **values).build().documents()
    }


def read_ids(path: Path | str, **values: Any) -> dict[str, list[int]]:
    """Returns the token ids by their names."""
    corpus = Files.Config(files=str(path), **values).build()
    return {each.name: each.ids.tolist() for each in corpus.documents() if each.ids is not None}


def read_shards(path: Path | str, **values: Any) -> tuple[list[Document | BadRecord], int]:
    """Returns what all shards hold, each read by a corpus of its own, and how many there are."""
    config = Files.Config(files=str(path), **values)
    shards = config.build().shards()
    assert shards == config.build().shards()
    return [record for shard in shards for record in config.build().read(shard)], len(shards)
