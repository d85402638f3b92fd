"""One file of a corpus, on this machine or behind fsspec: its name, bytes, size and state."""

from __future__ import annotations

import abc
import contextlib
import hashlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from dovetail.config import ConfigError, StorageError

# Requests to an object store are of this size, so that their latency does not matter.
_BLOCK_BYTES = 8 * 2**20
_BUFFER_BYTES = 2**20

# What file systems call the hash, the generation or the version of an object.
_VERSION_KEYS = ("etag", "md5hash", "md5", "checksum", "sha256", "crc32c", "version", "generation")


class SourceFile(abc.ABC):
    """A file with the name that it has in the corpus."""

    name: str

    @property
    @abc.abstractmethod
    def where(self) -> str:
        """Its path or URL, for messages."""

    @property
    @abc.abstractmethod
    def local_path(self) -> Path | None:
        """Its path on this machine; None behind a URL."""

    @abc.abstractmethod
    def open(self) -> BinaryIO:
        """Opens it for reading."""

    @abc.abstractmethod
    def size(self) -> int:
        """Returns its size in bytes."""

    @abc.abstractmethod
    def state(self) -> str:
        """Returns what changes when its content does, without reading it; a key for caches."""

    @abc.abstractmethod
    def digest(self) -> bytes:
        """Returns a hash of its content, or of the hash that an object store has of it."""

    @abc.abstractmethod
    def with_suffix(self, old: str, new: str) -> SourceFile | None:
        """Returns the file beside it whose name ends otherwise; None if there is none."""

    def head(self, count: int) -> bytes:
        """Returns its first bytes."""
        try:
            with self.open() as stream:
                return stream.read(count)
        except OSError as error:
            raise unreadable(self, error) from error


@dataclass(frozen=True)
class LocalFile(SourceFile):
    """A file on this machine."""

    name: str
    path: Path

    @property
    def where(self) -> str:
        """Its path."""
        return str(self.path)

    @property
    def local_path(self) -> Path:
        """Its path."""
        return self.path

    def open(self) -> BinaryIO:
        """Opens it for reading."""
        return self.path.open("rb")

    def size(self) -> int:
        """Returns its size in bytes."""
        try:
            return self.path.stat().st_size
        except OSError as error:
            raise unreadable(self, error) from error

    def state(self) -> str:
        """Returns its path, size and modification time."""
        try:
            found = self.path.stat()
        except OSError as error:
            raise unreadable(self, error) from error
        return f"{self.path.resolve()}\0{found.st_size}\0{found.st_mtime_ns}\0"

    def digest(self) -> bytes:
        """Returns the hash of its content."""
        try:
            with self.path.open("rb") as stream:
                return hashlib.file_digest(stream, "blake2b").digest()
        except OSError as error:
            raise unreadable(self, error) from error

    def with_suffix(self, old: str, new: str) -> LocalFile | None:
        """Returns the file beside it whose name ends otherwise; None if there is none."""
        path = self.path.with_name(self.path.name.removesuffix(old) + new)
        return LocalFile(self.name.removesuffix(old) + new, path) if path.is_file() else None


@dataclass(frozen=True)
class RemoteFile(SourceFile):
    """A file behind a URL of fsspec."""

    name: str
    path: str
    fs: Any
    info: Mapping[str, Any] = field(compare=False)

    @property
    def where(self) -> str:
        """Its URL."""
        return str(self.fs.unstrip_protocol(self.path))

    @property
    def local_path(self) -> None:
        """None."""
        return

    def open(self) -> BinaryIO:
        """Opens it for reading, ahead of the reader."""
        return io.BufferedReader(_RemoteStream(self), _BUFFER_BYTES)

    def size(self) -> int:
        """Returns its size in bytes; 0 if the server does not say."""
        return int(self.info.get("size") or 0)

    def state(self) -> str:
        """Returns its URL and its version."""
        return f"{self.where}\0{self.digest().hex()}\0"

    def digest(self) -> bytes:
        """Returns a hash of its size and version: hashing its content would download all of it.

        Most object stores have a hash of every object (an etag). Elsewhere, everything counts that
        the file system knows about the file, such as its modification time.
        """
        known = {str(key).lower(): value for key, value in self.info.items()}
        version = next((str(known[key]) for key in _VERSION_KEYS if known.get(key)), None)
        content = f"{self.size()}\0{version or self.fs.ukey(self.path)}"
        return hashlib.blake2b(content.encode()).digest()

    def with_suffix(self, old: str, new: str) -> RemoteFile | None:
        """Returns the file beside it whose name ends otherwise; None if there is none."""
        path = self.path.removesuffix(old) + new
        try:
            info = self.fs.info(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unreadable(self, error) from error
        return RemoteFile(self.name.removesuffix(old) + new, path, self.fs, info)


class _RemoteStream(io.RawIOBase):
    """The bytes of a remote file; whatever its library raises becomes one kind of error."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        with self._explained_errors():
            self._stream = file.fs.open(
                file.path, "rb", block_size=_BLOCK_BYTES, cache_type="readahead"
            )

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with self._explained_errors():
            data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with self._explained_errors():
            return int(self._stream.seek(offset, whence))

    def tell(self) -> int:
        return int(self._stream.tell())

    def close(self) -> None:
        if not self.closed and hasattr(self, "_stream"):
            self._stream.close()
        super().close()

    @contextlib.contextmanager
    def _explained_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise unreadable(self._file, error) from error
        except Exception as error:  # libraries of object stores have errors of their own
            raise StorageError(f"cannot read {self._file.where}: {error!r}.") from error


def unreadable(file: SourceFile, error: OSError) -> ConfigError | StorageError:
    """Returns the error for a file of a corpus that cannot be read."""
    reason = error.strerror or str(error) or type(error).__name__
    if file.local_path is None and not isinstance(error, FileNotFoundError | PermissionError):
        return StorageError(f"cannot read {file.where}: {reason}.")
    return ConfigError(
        f"cannot read {file.where}: {reason}. Make it readable, or leave it out of the corpus."
    )
