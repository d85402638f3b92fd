"""Large files are read in bounded memory, whatever their format."""

import subprocess
import sys
from pathlib import Path

import pytest

MEGABYTES = 200

WRITE = """
import gzip, json, sys, zlib
import numpy as np
path, megabytes = sys.argv[1], int(sys.argv[2])
letters = np.frombuffer(b"abcdefghijklmnop \\n", np.uint8)
random = np.random.default_rng(0)
def texts():
    for _ in range(megabytes):
        block = letters[random.integers(0, len(letters), 2**20)].tobytes().decode()
        yield from (block[at:at + 2048] for at in range(0, 2**20, 2048))
if path.endswith(".parquet"):
    import pyarrow as pa, pyarrow.parquet as pq
    pq.write_table(pa.table({"text": list(texts())}), path, row_group_size=10**9)
elif path.endswith(".arrow"):
    import pyarrow as pa
    schema = pa.schema([("text", pa.string())])
    with pa.ipc.new_stream(path, schema) as writer:
        writer.write_table(pa.table({"text": list(texts())}, schema), max_chunksize=1000)
else:
    import zstandard
    plain = open(path, "wb")
    stream = (
        gzip.GzipFile(fileobj=plain, mode="wb", compresslevel=1) if path.endswith(".gz")
        else zstandard.ZstdCompressor(level=1).stream_writer(plain) if path.endswith(".zst")
        else plain
    )
    for text in texts():
        stream.write(json.dumps({"text": text}).encode() + b"\\n")
    stream.close()
"""

READ = r"""
import re, sys
from dovetail.data import Files
corpus = Files.Config(files=sys.argv[1]).build()
corpus.fingerprint()
total = sum(len(each.text) for each in corpus.documents())
status = open("/proc/self/status").read()  # ru_maxrss would have the parent's, too
print(total, len(corpus.shards()), int(re.search(r"VmHWM:\s+(\d+)", status)[1]) // 1024)
"""


def run(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("name", "megabytes"),
    [
        ("x.jsonl", 150),
        ("x.jsonl.gz", 150),
        ("x.jsonl.zst", 150),
        ("x.parquet", 150),
        ("x.arrow", 150),
    ],
)
def test_peak_memory(name: str, megabytes: int, tmp_path: Path, cache_folder: Path) -> None:
    path = str(tmp_path / name)
    run(WRITE, path, str(MEGABYTES))
    total, shards, peak = map(int, run(READ, path).split())
    assert total == MEGABYTES * 2**20
    assert shards == (27 if name == "x.jsonl" else 1)  # of 8 MB
    print(f"{name}: {peak} MB")
    assert peak < megabytes
