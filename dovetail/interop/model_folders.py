"""Folders of model files: local, behind fsspec, or on the Hub; and new folders, created atomically.

Invariant: nothing outside the folder that the user named is read, even if an index or a symbolic
link points there.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from dovetail.config import ConfigError

HUB = "hub:"
_HOST = re.sub(r"[^\w.]", "_", socket.gethostname())

# Only data is downloaded from the Hub, never code.
_HUB_PATTERNS = ("*.safetensors", "*.json", "*.txt", "*.jinja", "tokenizer.model")


class ModelFolder(Protocol):
    """A read-only folder of files, read by name and byte range."""

    @property
    def name(self) -> str:
        """Its name in error messages."""
        ...

    def names(self) -> list[str]:
        """Returns the names of its files, sorted."""
        ...

    def size(self, name: str) -> int:
        """Returns a file's size in bytes."""
        ...

    def read(self, name: str, start: int, count: int) -> bytes | bytearray:
        """Returns `count` bytes of a file from an offset; fewer at its end."""
        ...


def open_folder(text: str) -> ModelFolder:
    """Opens `hub:org/name`, an fsspec URL, or a local folder."""
    if text.startswith(HUB):
        return LocalFolder(_fetch_from_hub(text.removeprefix(HUB)))
    for scheme in ("file://", "local://"):  # LocalFolder checks symbolic links, fsspec does not
        text = text.removeprefix(scheme)
    if "://" in text:
        return RemoteFolder(text)
    folder = Path(text).expanduser()
    if not folder.is_dir():
        hint = ""
        if re.fullmatch(r"[\w.-]+/[\w.-]+", text):
            hint = f" If it is a name on the Hub, write {HUB}{text}."
        raise ConfigError(f"{text}: there is no such folder.{hint}")
    return LocalFolder(folder)


class LocalFolder:
    """A folder on this machine."""

    def __init__(self, path: Path) -> None:
        """Stores the path, and the folders that its symbolic links may point into."""
        self.path, self.name = path, str(path)
        self._roots = [path.resolve()]
        if path.resolve().parent.name == "snapshots":  # the Hub's cache links into its blobs
            self._roots.append(path.resolve().parent.parent / "blobs")

    def names(self) -> list[str]:
        """Returns the names of its files, sorted."""
        return sorted(entry.name for entry in self.path.iterdir() if entry.is_file())

    def size(self, name: str) -> int:
        """Returns a file's size in bytes."""
        return self._file(name).stat().st_size

    def read(self, name: str, start: int, count: int) -> bytearray:
        """Returns `count` bytes of a file from an offset."""
        data, done = bytearray(count), 0
        with self._file(name).open("rb", buffering=0) as file, memoryview(data) as view:
            file.seek(start)
            while count_read := file.readinto(view[done:]):  # Linux reads at most 2 GB at a time
                done += count_read
        return data if done == count else data[:done]

    def _file(self, name: str) -> Path:
        _check_plain(self.name, name)
        path = self.path / name
        real = path.resolve()
        if not any(real.is_relative_to(root) for root in self._roots):
            raise ConfigError(
                f"{path} is a link to {real}, outside of its folder, and is not followed. "
                "Copy the file itself there."
            )
        if not real.is_file():
            raise ConfigError(f"{path}: there is no such file.")
        return real


class RemoteFolder:
    """A folder that fsspec reaches, such as gs://bucket/model."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise ConfigError(f"{url}: remote files need `pip install fsspec`.") from error
        self.name = url.rstrip("/")
        try:
            self._system, self._path = fsspec.core.url_to_fs(self.name)
            found = self._system.isdir(self._path)
        except (ImportError, ValueError, OSError) as error:
            raise ConfigError(f"{url} cannot be reached: {error}") from error
        if not found:
            raise ConfigError(f"{url}: there is no such folder.")

    def names(self) -> list[str]:
        """Returns the names of its files, sorted."""
        entries = self._system.ls(self._path, detail=True)
        return sorted(e["name"].rsplit("/", 1)[-1] for e in entries if e["type"] == "file")

    def size(self, name: str) -> int:
        """Returns a file's size in bytes."""
        try:
            return int(self._system.size(self._file(name)))
        except FileNotFoundError as error:
            raise ConfigError(f"{self.name}/{name}: there is no such file.") from error

    def read(self, name: str, start: int, count: int) -> bytes:
        """Returns `count` bytes of a file from an offset."""
        return self._system.cat_file(self._file(name), start=start, end=start + count)

    def _file(self, name: str) -> str:
        _check_plain(self.name, name)
        return f"{self._path}/{name}"


def read_json(folder: ModelFolder, name: str) -> dict[str, Any]:
    """Reads a file that holds a JSON object."""
    data = folder.read(name, 0, folder.size(name))
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{folder.name}/{name} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{folder.name}/{name}: expected a JSON object, got {type(value)}.")
    return value


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes a JSON object with indentation."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def refuse_existing(final: Path) -> None:
    """Raises ConfigError if a new folder exists already."""
    if final.exists() or final.is_symlink():
        raise ConfigError(f"{final} exists already. Choose another folder, or remove that one.")


@contextlib.contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """Yields a temporary folder that is renamed to `final` at the end, or removed on an error."""
    refuse_existing(final)
    temporary = final.with_name(f".{final.name}.part-{_HOST}-{os.getpid()}")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(final)
        temporary.mkdir()
    except OSError as error:
        raise ConfigError(f"{final} cannot be created: {error.strerror}.") from error
    try:
        with _removed_on_signals(temporary):
            yield temporary
            temporary.rename(final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def _removed_on_signals(folder: Path) -> Iterator[None]:
    """Removes a folder when a signal arrives: the default handler runs no `finally`."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous: dict[int, Any] = {number: signal.getsignal(number) for number in numbers}

    def remove(number: int, frame: Any) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        signal.signal(number, previous[number])
        signal.raise_signal(number)

    for number in numbers:
        signal.signal(number, remove)
    try:
        yield
    finally:
        for one in numbers:
            signal.signal(one, previous[one])


def _remove_leftovers(final: Path) -> None:
    """Removes temporary folders of the same name that killed processes of this host left."""
    for entry in final.parent.glob(f".{final.name}.part-{_HOST}-*"):
        process = entry.name.rpartition("-")[2]
        if process.isdigit() and not Path(f"/proc/{process}").exists() and Path("/proc").exists():
            shutil.rmtree(entry, ignore_errors=True)


def _check_plain(folder: str, name: str) -> None:
    if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise ConfigError(
            f"{folder}: the file name {name!r} leads outside of the folder, and is not followed."
        )


def _fetch_from_hub(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ConfigError(
            f"{HUB}{name}: fetching from the Hub needs `pip install 'dovetail[hub]'`."
        ) from error
    repository, _, revision = name.partition("@")
    try:
        return Path(
            snapshot_download(
                repository, revision=revision or None, allow_patterns=list(_HUB_PATTERNS)
            )
        )
    except (OSError, ValueError) as error:  # raised by the library and its transport
        raise ConfigError(
            f"{HUB}{name} cannot be fetched: {error}. Check the name and the network, or download "
            "the folder by other means and name that."
        ) from error
