"""Streams of gzip and zstandard, read in bounded memory; a truncated one is an error."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
SUFFIXES = (".gz", ".gzip", ".zst", ".zstd")

# zstandard decompresses each of these at once: some 100 kB of text, and 0.5 GB of a bomb.
_COMPRESSED_BYTES = 2**14
_BUFFER_BYTES = 2**20


def compression(data: bytes) -> str:
    """Returns the compression of a file by its first bytes, or nothing."""
    return "gzip" if data.startswith(GZIP) else "zstandard" if data.startswith(ZSTD) else ""


def without_suffix(name: str) -> str:
    """Returns a name in lower case without the suffix of a compression."""
    name = name.lower()
    return next((name.removesuffix(each) for each in SUFFIXES if name.endswith(each)), name)


def decompressed_start(data: bytes, zstandard: Callable[[], Any]) -> bytes:
    """Returns the decompressed first bytes of a file; nothing if they are damaged."""
    limit = 2**16
    if compression(data) == "gzip":
        try:
            return zlib.decompressobj(wbits=31).decompress(data, limit)
        except zlib.error:
            return b""
    library = zstandard()
    try:
        with library.ZstdDecompressor().stream_reader(
            io.BytesIO(data), read_across_frames=True
        ) as stream:
            return bytes(stream.read(limit))
    except (library.ZstdError, MemoryError):
        return b""


def decompressed(stream: BinaryIO, kind: str, zstandard: Callable[[], Any]) -> BinaryIO:
    """Returns a stream of decompressed bytes; raises EOFError where a file is truncated."""
    if kind == "gzip":
        return io.BufferedReader(gzip.GzipFile(fileobj=stream), _BUFFER_BYTES)
    return io.BufferedReader(_Zstandard(stream, zstandard()), _BUFFER_BYTES)


class _Zstandard(io.RawIOBase):
    """Decompresses all frames of a stream.

    zstandard's own reader takes a truncated frame for the end of the stream.
    """

    def __init__(self, stream: BinaryIO, library: Any) -> None:
        self._stream, self._library = stream, library
        self._frame: Any = None
        self._unused = b""  # compressed bytes after the end of a frame
        self._output = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._output:
            data = self._unused or self._stream.read(_COMPRESSED_BYTES)
            if not data:
                if self._frame is not None:
                    raise EOFError("the compressed data ends in the middle of a frame")
                return 0
            self._output = memoryview(self._decompress(data))
        count = min(len(buffer), len(self._output))
        buffer[:count] = self._output[:count]
        self._output = self._output[count:]
        return count

    def _decompress(self, data: bytes) -> bytes:
        if self._frame is None:
            self._frame = self._library.ZstdDecompressor(max_window_size=2**31).decompressobj()
        output: bytes = self._frame.decompress(data)
        self._unused = b""
        if self._frame.eof:
            self._unused, self._frame = self._frame.unused_data, None
        return output
