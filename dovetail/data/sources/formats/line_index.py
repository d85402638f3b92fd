"""Where a large file of lines is cut into shards, and the number of each shard's first line.

Documents are named by their line, so the lines before a shard must be counted: one pass over the
file at some gigabytes a second, whose result is cached.
"""

from __future__ import annotations

import hashlib
import json
from itertools import pairwise

from dovetail.data.interfaces import CorpusShard
from dovetail.data.sources.source_file import SourceFile
from dovetail.data.store import data_folder, write_file

_BLOCK_BYTES = 4 * 2**20


class LineIndex:
    """The cuts of files: offsets of line starts, with the number of the line, from 1."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], dict[int, int]] = {}

    def shards(self, file: SourceFile, shard_bytes: int) -> list[CorpusShard]:
        """Cuts a file at line ends into pieces of about `shard_bytes`."""
        cuts = [*self._cuts(file, shard_bytes), file.size()]
        return [
            CorpusShard(file.name, start, stop, stop - start)
            for start, stop in pairwise(cuts)
            if stop > start
        ]

    def line(self, file: SourceFile, shard: CorpusShard, shard_bytes: int) -> int:
        """Returns the number of a shard's first line."""
        return 1 if shard.start == 0 else self._cuts(file, shard_bytes)[shard.start]

    def _cuts(self, file: SourceFile, shard_bytes: int) -> dict[int, int]:
        if file.size() <= shard_bytes:
            return {0: 1}
        state = f"{file.state()}{shard_bytes}".encode("utf-8", "surrogateescape")
        key = hashlib.blake2b(state, digest_size=16).hexdigest()
        if (key, shard_bytes) not in self._known:
            self._known[key, shard_bytes] = _cached_cuts(file, shard_bytes, key)
        return self._known[key, shard_bytes]


def _cached_cuts(file: SourceFile, shard_bytes: int, key: str) -> dict[int, int]:
    path = data_folder() / "lines" / f"{key}.json"
    try:
        return {int(offset): int(line) for offset, line in json.loads(path.read_text())}
    except (FileNotFoundError, ValueError, TypeError):
        cuts = _count(file, shard_bytes)
        write_file(path, json.dumps(list(cuts.items())))
        return cuts


def _count(file: SourceFile, shard_bytes: int) -> dict[int, int]:
    """Reads a file once; a cut is after the first line end at or beyond each `shard_bytes`."""
    cuts, last, line, position = {0: 1}, 0, 1, 0
    with file.open() as stream:
        while block := stream.read(_BLOCK_BYTES):
            counted = 0
            while True:
                target = max(last + shard_bytes - 1 - position, counted)
                end = block.find(b"\n", target) + 1
                if not end:
                    break
                line += block.count(b"\n", counted, end)
                counted, last = end, position + end
                cuts[last] = line
            line += block.count(b"\n", counted)
            position += len(block)
    return {offset: number for offset, number in cuts.items() if offset < max(position, 1)}
