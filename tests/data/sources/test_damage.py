"""A bad record has a place and a problem, a damaged file is one error, and no bytes do worse."""

import contextlib
import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dovetail.config import ConfigError
from dovetail.data import BadRecordCount, Document, Files
from dovetail.data.interfaces import BadRecord
from dovetail.data.sources.detection import FORMATS
from dovetail.data.sources.formats import json_lines as json_lines_module
from tests.data.sources.writers import (
    WRITERS,
    read,
    read_shards,
    write_array_record,
    write_jsonl,
    write_megatron,
    write_parquet,
    write_starts,
)

TEXTS = [f"text {number} " + "x" * (number * 37 % 500) for number in range(200)]
LINES = [
    (b'{"text": "good"}', None),
    (b'{"text": "cut of', "not JSON: Unterminated string"),
    (b'{"title": "a"}', "no column 'text' or 'content'; it has 'title'. Set text=COLUMN"),
    (b'{"text": 3}', "column 'text' is a number, not text"),
    (b'{"text": "caf\xe9"}', "not UTF-8 text (byte 13 is 0xe9)"),
    (b'{"text": "\\ud800"}', "column 'text' has half of a surrogate pair"),
    (b'["text"]', "expected a JSON object, got a list"),
    (b"[" * 100_000, "nested too deeply"),
    (b"1" * 5000, "not JSON: Exceeds the limit"),
    (b'{"text": "good"}', None),
]


def test_bad_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n".join(line for line, _ in LINES))
    found, _ = read_shards(path)
    for number, (record, (_, problem)) in enumerate(zip(found, LINES, strict=True), 1):
        if problem is None:
            assert record == Document(f"x.jsonl#{number}", "good")
        else:
            assert isinstance(record, BadRecord)
            assert record.name == f"{path}:{number}"
            assert problem in record.problem


def test_a_line_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines_module, "_LONGEST_LINE", 100)
    path = write_jsonl(tmp_path, ["a", "b" * 250, "c"])
    found, _ = read_shards(path)
    assert found[1] == BadRecord(f"{path}:2", "longer than 100 bytes")
    assert found[2] == Document("x.jsonl#3", "c")


def test_bad_rows(tmp_path: Path) -> None:
    texts = pa.array([b"good", None, b"caf\xe9", b"good"], pa.binary())
    pq.write_table(pa.table({"text": texts}), tmp_path / "x.parquet")
    good, null, invalid, last = read_shards(tmp_path)[0]
    assert (good, last) == (Document("x.parquet#0", "good"), Document("x.parquet#3", "good"))
    path = tmp_path / "x.parquet"
    assert null == BadRecord(f"{path}:1", "column 'text' is null, not text")
    assert invalid == BadRecord(f"{path}:2", "column 'text' is not UTF-8 text")


def test_a_table_without_the_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["a"]}), tmp_path / "x.parquet")
    with pytest.raises(
        ConfigError, match=r"x\.parquet has no column 'text' or 'content'; it has 'b"
    ):
        read(tmp_path)
    with pytest.raises(ConfigError, match=r"has no column 'b'; it has 'body'.*such as text=body"):
        read(tmp_path, text="b")


def test_bad_array_records_and_ids(tmp_path: Path) -> None:
    path = write_array_record(tmp_path, ["good"])
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1")
    writer.write(b"caf\xe9")
    writer.close()
    assert read_shards(path)[0] == [BadRecord(f"{path}:0", "not UTF-8 text (byte 3 is 0xe9)")]
    np.save(tmp_path / "ids.npy", np.array([[1, 2], [3, -4]]))
    found, _ = read_shards(tmp_path / "ids.npy")
    assert isinstance(found[0], Document)
    problem = "the token id -4 is not between 0 and 2147483647"
    assert found[1] == BadRecord(f"{tmp_path / 'ids.npy'}:1", problem)


def test_too_many_bad_records_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n".join(line for line, _ in LINES))
    with pytest.raises(ConfigError) as caught:
        read(path, max_bad=0.5)
    assert str(caught.value) == (
        "corpus x-jsonl: 8 of 10 records are bad, and max_bad=0.5 allows 5.\n"
        f"  {path}:2: not JSON: Unterminated string starting at: line 1 column 10 (char 9)\n"
        f"  {path}:3: no column 'text' or 'content'; it has 'title'. Set text=COLUMN\n"
        f"  {path}:4: column 'text' is a number, not text\n"
        "Repair the files, leave them out with exclude=..., or set max_bad to the share of bad "
        "records that may be skipped (found so far: 0.8)."
    )
    assert list(read(path, max_bad=0.8)) == ["x.jsonl#1", "x.jsonl#10"]
    with pytest.raises(ConfigError, match=r"1 of 2 records is bad, and max_bad=0 allows 0"):
        read(path)


def test_counts_of_shards_add_up() -> None:
    total = BadRecordCount(allowed=0.25)
    for shard in range(4):
        count = BadRecordCount()
        for number in range(10):
            bad = number < 2
            count.add(BadRecord(f"{shard}:{number}", "bad") if bad else Document("good"))
        total.merge(count)
    total.check("c")
    assert (total.records, total.bad, total.is_hopeless) == (40, 8, False)
    assert [each.name for each in total.examples] == ["0:0", "0:1", "1:0"]
    total.allowed = 0.1
    with pytest.raises(
        ConfigError, match=r"corpus c: 8 of 40 records are bad, and max_bad=0.1 all"
    ):
        total.check("c")


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "jsonl"])
def test_a_truncated_file_is_one_error_with_its_name(name: str, tmp_path: Path) -> None:
    path = WRITERS[name](tmp_path, TEXTS)
    data = path.read_bytes()
    for count in (len(data) // 2, len(data) - 1, 70):
        path.write_bytes(data[:count])
        if name == "arrow stream" and count == len(data) - 1:
            continue  # only the mark of the end is cut
        with pytest.raises(
            ConfigError, match=rf"^{path} cannot be read as .*Copy it again, or lea"
        ):
            read(path, max_bad=1.0)


def test_truncated_token_files(tmp_path: Path) -> None:
    for path in (write_megatron(tmp_path, [[[1, 2]], [[3]]]), write_starts(tmp_path, [[1], [2]])):
        data = path.read_bytes()
        for count in (len(data) - 1, len(data) // 2, 12):
            path.write_bytes(data[:count])
            with pytest.raises(ConfigError, match=rf"^{path} cannot be read as"):
                read(path)
        path.unlink()


def test_token_files_that_do_not_fit_together(tmp_path: Path) -> None:
    path = write_megatron(tmp_path, [[[1, 2]], [[3]]])
    (tmp_path / "x.bin").write_bytes(b"\1")
    with pytest.raises(ConfigError, match=r"a sequence ends at byte 6 of the \.bin, which has 1"):
        read(path)
    (tmp_path / "x.bin").unlink()
    with pytest.raises(ConfigError, match=r"x\.idx: there is no \.bin beside it"):
        read(path)
    np.save(tmp_path / "y.npy", np.arange(5))
    with pytest.raises(
        ConfigError, match=r"document in each row, or a file '\.starts\.npy'.*\(5,\)"
    ):
        read(tmp_path / "y.npy")
    for starts, problem in (([0, 9], "at most 5"), ([2, 3], "start at 0, not at 2")):
        np.save(tmp_path / "y.starts.npy", np.array(starts))
        with pytest.raises(ConfigError, match=problem):
            read(tmp_path / "y.npy")
    np.save(tmp_path / "z.npy", np.zeros((2, 2)))
    with pytest.raises(ConfigError, match=r"expected an array of integers, got float64"):
        read(tmp_path / "z.npy")


@pytest.mark.parametrize(
    ("name", "module", "library"),
    [
        ("parquet", "pyarrow.parquet", "pyarrow"),
        ("arrow file", "pyarrow.ipc", "pyarrow"),
        ("zstandard", "zstandard", "zstandard"),
        ("array_record", "array_record.python.array_record_module", "array_record"),
    ],
)
def test_a_missing_library(
    name: str, module: str, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = WRITERS[name](tmp_path, ["a"])
    monkeypatch.setitem(sys.modules, module, None)
    message = rf"{path.name}: reading .* needs {library} .*pip install 'dovetail\[data\]'"
    with pytest.raises(ConfigError, match=message):
        read(path)


def test_importing_data_imports_no_optional_library() -> None:
    import subprocess

    program = (
        "import sys, dovetail.data; found = {'jax', 'pyarrow', 'zstandard', 'array_record', "
        "'fsspec', 'datasets'} & set(sys.modules); sys.exit(str(found) if found else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


MAGIC = [
    b"",
    b"PAR1",
    b"ARROW1\0\0",
    b"\xff\xff\xff\xff\x10\0\0\0",
    bytes.fromhex("83af70d10d884a3f0000000000000000400000000000000091bac23c9287e1a9"),
    b"MMIDIDX\0\0\1\0\0\0\0\0\0\0\4",
    b"\x93NUMPY\1\0v\0{'descr': '<i8', 'fortran_order': False, 'shape': (2, 3), }",
    b"\x1f\x8b\x08\0\0\0\0\0\0\0",
    b"\x28\xb5\x2f\xfd",
    b'{"text": ',
]


def consume(path: Path, format: Any) -> None:
    """Reads a file as a format; a ConfigError is the only error."""
    with contextlib.suppress(ConfigError):
        config = Files.Config(files=str(path), format=format, max_bad=1.0, shard_bytes=100)
        list(config.build().documents())


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=st.sampled_from(MAGIC), data=st.binary(max_size=400))
@example(start=b"", data=b"")
def test_random_bytes_as_every_format(
    start: bytes, data: bytes, tmp_path: Path, cache_folder: Path
) -> None:
    path = tmp_path / "x.idx"
    path.write_bytes(start + data)
    (tmp_path / "x.bin").write_bytes(data)
    for format in (None, *(each.Config() for each in FORMATS)):
        consume(path, format)


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(places=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=5))
def test_flipped_bytes(
    name: str, places: list[tuple[float, int]], tmp_path: Path, cache_folder: Path
) -> None:
    path = WRITERS[name](tmp_path, TEXTS[:20])
    data = bytearray(path.read_bytes())
    for place, value in places:
        data[min(int(place * len(data)), len(data) - 1)] = value
    path.write_bytes(data)
    consume(path, None)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(places=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=5))
@example(places=[(0.3828125, 66)])  # a key of a NumPy header becomes bytes
def test_flipped_bytes_of_token_files(places: list[tuple[float, int]], tmp_path: Path) -> None:
    for path in (write_megatron(tmp_path, [[[1, 2]], [[3]]]), write_starts(tmp_path, [[1], [2]])):
        data = bytearray(path.read_bytes())
        for place, value in places:
            data[min(int(place * len(data)), len(data) - 1)] = value
        path.write_bytes(data)
        consume(path, None)


def test_an_unreadable_file_of_each_kind_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_parquet(tmp_path, ["a"])
    corpus = Files.Config(files=str(path)).build()
    (shard,) = corpus.shards()
    path.unlink()
    with pytest.raises(ConfigError, match=rf"cannot read {re.escape(str(path))}: No such file"):
        list(corpus.read(shard))


def test_a_gzip_bomb_takes_no_memory_at_detection(tmp_path: Path) -> None:
    lines = json.dumps({"text": "x" * 10**6}).encode() + b"\n"
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(lines * 20))
    (tmp_path / "y.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(lines * 20))
    assert [len(text) for text in read(tmp_path).values()] == [10**6] * 40
