"""A folder of an object store, through fsspec: names and bytes, and one kind of error."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from dovetail.config import ConfigError, StorageError
from dovetail.runtime.checkpoints.shards.reading import UnreachableError
from dovetail.runtime.checkpoints.shards.shard_file import Writable

_BLOCK_BYTES = 16 * 2**20


class ObjectStoreError(StorageError, UnreachableError):
    """An object store does not answer, or refuses a request."""


class Bucket:
    """All objects whose names begin with a URL. Objects appear whole, or not at all."""

    def __init__(self, url: str) -> None:
        """Finds the file system of the URL; sends no request yet."""
        import fsspec

        if "://" not in url:
            raise ConfigError(
                f"checkpointer.store.url: expected a URL, such as s3://bucket/folder, got {url!r}."
            )
        try:
            # A cached listing would hide what other processes wrote.
            options = {"use_listings_cache": False}
            if url.startswith(("file:", "local:")):
                options["auto_mkdir"] = True
            fs, self._root = fsspec.core.url_to_fs(url.rstrip("/"), **options)
        except ImportError as error:
            raise ConfigError(
                f"checkpointer.store.url: {url} needs a package that is not installed. {error}."
            ) from error
        except ValueError as error:
            raise ConfigError(f"checkpointer.store.url: {url}: {error}.") from error
        self._fs: Any = fs
        self.url = url.rstrip("/")

    def names(self) -> list[str]:
        """Returns the names of all objects, relative to the URL."""
        with self._errors(""):
            self._fs.invalidate_cache()
            try:
                found: list[str] = self._fs.find(self._root)
            except FileNotFoundError:  # no object yet
                return []
        return sorted(name.removeprefix(self._root).lstrip("/") for name in found)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Returns the bytes of an object, or a range of them."""
        end = None if length is None else offset + length
        with self._errors(name):
            content: bytes = self._fs.cat_file(self._path(name), start=offset, end=end)
        return content

    def size(self, name: str) -> int:
        """Returns the number of bytes of an object."""
        with self._errors(name):
            return int(self._fs.size(self._path(name)))

    def write(self, name: str, content: bytes) -> None:
        """Writes an object."""
        with self._errors(name):
            self._fs.pipe_file(self._path(name), content)

    def create(self, name: str, content: bytes) -> None:
        """Makes an object that must not exist.

        Raises:
            ObjectStoreError: if there is one, or the store has no such call.
        """
        with self._errors(name):
            self._fs.pipe_file(self._path(name), content, mode="create")

    @contextlib.contextmanager
    def new_object(self, name: str) -> Iterator[Writable]:
        """Writes an object from a stream; the object appears only if no error occurs."""
        with self._errors(name):
            path = self._path(name)
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)  # for stores with folders
            stream = self._fs.open(path, "wb", block_size=_BLOCK_BYTES)
        try:
            yield _Stream(stream, self, name)
        except BaseException:
            with contextlib.suppress(Exception):
                stream.discard()  # what was uploaded is not made an object
            raise
        with self._errors(name):
            stream.close()

    def remove(self, names: list[str]) -> None:
        """Removes objects; missing ones are ignored."""
        for name in names:
            with contextlib.suppress(FileNotFoundError), self._errors(name):
                self._fs.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextlib.contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        """Converts the errors of all libraries into one, except FileNotFoundError."""
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:
            where = f"{self.url}/{name}" if name else self.url
            text = str(error).strip() or type(error).__name__
            raise ObjectStoreError(f"{where} cannot be used: {text.splitlines()[0]}") from error


class _Stream:
    """A stream that raises the errors of its bucket."""

    def __init__(self, stream: Any, bucket: Bucket, name: str) -> None:
        self._stream, self._bucket, self._name = stream, bucket, name

    def write(self, content: bytes) -> int:
        with self._bucket._errors(self._name):
            self._stream.write(content)
        return len(content)
