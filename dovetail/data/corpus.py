"""Corpora: collections of documents. The default one is on every machine that runs Python."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import sysconfig
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dovetail.config import REQUIRED, Component, ConfigError
from dovetail.data.interfaces import Document
from dovetail.data.store import data_folder, write_file

# Folders of the standard library with third-party code, tests, or generated tables:
# `encodings` is a hundred character maps, `pydoc_data` one enormous string.
_NOT_LIBRARY = (
    "__pycache__",
    "dist-packages",
    "encodings",
    "idle_test",
    "pydoc_data",
    "site-packages",
    "test",
    "tests",
)

# Up to this size a corpus is hashed every time, in a fraction of a second. The hash of a larger one
# is cached until the size or modification time of a file changes.
_ALWAYS_HASHED_BYTES = 256 * 2**20


@dataclass(frozen=True)
class SourceFile:
    """A file of a corpus: its name in the corpus, and its path."""

    name: str
    path: Path


class StandardLibrary(Component):
    """The Python standard library's own sources on this machine: some 10 MB, no download."""

    class Config(Component.Config["StandardLibrary"]):
        exclude: tuple[str, ...] = _NOT_LIBRARY

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._exclude = config.exclude

    @property
    def name(self) -> str:
        """A short name."""
        return "python-standard-library"

    def fingerprint(self) -> str:
        """Returns a hash of the names and contents of all source files."""
        return fingerprint_files(self._files())

    def documents(self) -> Iterator[Document]:
        """Yields every source file that is UTF-8; the few in older encodings are left out."""
        for file in self._files():
            try:
                yield Document(file.name, read_bytes(file).decode("utf-8"))
            except UnicodeDecodeError:
                continue

    def _files(self) -> list[SourceFile]:
        root = Path(sysconfig.get_path("stdlib"))
        files = find_files(root, _is_library_source, self._exclude) if root.is_dir() else []
        if not files:
            raise ConfigError(
                f"StandardLibrary: no Python sources in {root}; this Python seems to be installed "
                "without them. Install one that has them, or train on your own text: set the "
                "input's corpus to TextFiles.Config(files=...)."
            )
        return files


class TextFiles(Component):
    """The user's own UTF-8 text files.

    A file longer than `passage_bytes` is split at line ends into passages, each a document. So even
    a single long file has a training split and a held-out split. Links to folders are not followed.
    """

    class Config(Component.Config["TextFiles"]):
        files: str = REQUIRED
        """A folder, a file, or a pattern such as `notes/**/*.md`; `~` is the home folder."""
        pattern: str = "**/*.txt"
        """Which files of a folder to take, where `files` is a folder."""
        passage_bytes: int = 65536

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.passage_bytes < 4:
            raise ConfigError(
                f"{config.locate('passage_bytes')}: expected at least 4 (the longest UTF-8 "
                f"character), got {config.passage_bytes}."
            )
        self._path = config.files
        self._pattern = config.pattern
        self._passage_bytes = config.passage_bytes

    @property
    def name(self) -> str:
        """The name of the folder or file."""
        stem = _fixed_prefix(Path(self._path).expanduser()).resolve().name
        safe = "".join(letter if letter.isalnum() else "-" for letter in stem).strip("-")
        return safe[:40] or "text"

    def fingerprint(self) -> str:
        """Returns a hash of the names and contents of all files, and of the length of passages."""
        return f"{fingerprint_files(self._files())}/{self._passage_bytes}"

    def documents(self) -> Iterator[Document]:
        """Yields the passages of every file."""
        for file in self._files():
            text = _decode(file, read_bytes(file))
            passages = list(split_into_passages(text, self._passage_bytes))
            for index, passage in enumerate(passages):
                yield Document(file.name if len(passages) == 1 else f"{file.name}#{index}", passage)

    def _files(self) -> list[SourceFile]:
        path = Path(self._path).expanduser()
        if path.is_file():
            return [SourceFile(path.name, path)]
        if path.is_dir():
            return self._matching(path, self._pattern)
        root = _fixed_prefix(path)
        if root != path and root.is_dir():
            return self._matching(root, path.relative_to(root).as_posix())
        raise ConfigError(
            f"{self.config.locate('files')}: there is no file or folder {str(path)!r} (relative "
            f"paths start at {Path.cwd()}). Set it to a folder, a file, or a pattern such as "
            "'notes/**/*.md'."
        )

    def _matching(self, root: Path, pattern: str) -> list[SourceFile]:
        depth = None if "**" in pattern else pattern.count("/")
        found = find_files(root, _matcher(pattern), depth=depth)
        if not found:
            files = find_files(root, lambda _: True, depth=depth)
            others = sorted({file.path.suffix for file in files} - {""})
            hint = f" It holds files that end in {', '.join(others[:8])}." if others else ""
            raise ConfigError(
                f"TextFiles: no file in {root} matches {pattern!r}.{hint} "
                "Set pattern to the files to read, such as '**/*.md'."
            )
        return found


def split_into_passages(text: str, limit: int) -> Iterator[str]:
    """Yields consecutive passages of at most `limit` bytes, split at line ends where possible."""
    data = text.encode("utf-8")
    start = 0
    while len(data) - start > limit:
        end = data.rfind(b"\n", start, start + limit) + 1
        if end <= start:
            end = start + limit
            while data[end] & 0xC0 == 0x80:  # not inside a character
                end -= 1
        yield data[start:end].decode("utf-8")
        start = end
    yield data[start:].decode("utf-8")


def find_files(
    root: Path,
    wanted: Callable[[str], bool],
    excluded_folders: Collection[str] = (),
    depth: int | None = None,
) -> list[SourceFile]:
    """Returns the files under `root` whose name (relative, with '/') is wanted, sorted by name.

    Descends `depth` levels (None: all of them); does not follow links.
    """

    def refuse(error: OSError) -> None:
        raise ConfigError(f"cannot list {error.filename}: {error.strerror}. Check its permissions.")

    found = []
    for folder, folders, files in os.walk(root, onerror=refuse, followlinks=False):
        # Pruned in place, so that the walk does not enter them: site-packages or a home folder can
        # be huge.
        at_max_depth = depth is not None and len(Path(folder).relative_to(root).parts) >= depth
        keep = [name for name in folders if name not in excluded_folders and not at_max_depth]
        folders[:] = keep
        for file in files:
            path = Path(folder, file)
            name = path.relative_to(root).as_posix()
            if wanted(name):
                found.append(SourceFile(name, path))
    return sorted(found, key=lambda file: file.name)


def read_bytes(file: SourceFile) -> bytes:
    """Returns a file's content, or raises an error that names the file."""
    try:
        return file.path.read_bytes()
    except OSError as error:
        raise unreadable(file, error) from error


def unreadable(file: SourceFile, error: OSError) -> ConfigError:
    """Returns the error for a file of a corpus that cannot be read."""
    return ConfigError(
        f"cannot read {file.path}: {error.strerror}. "
        "Make it readable, or leave it out of the corpus."
    )


def fingerprint_files(files: Sequence[SourceFile]) -> str:
    """Returns a hash of all names and contents."""
    total, key = _stat_files(files)
    if total <= _ALWAYS_HASHED_BYTES:
        return _hash_contents(files)
    cached = data_folder() / "fingerprints" / key
    try:
        return cached.read_text()
    except FileNotFoundError:
        result = _hash_contents(files)
        write_file(cached, result)
        return result


def _stat_files(files: Sequence[SourceFile]) -> tuple[int, str]:
    """Returns the total size, and a hash of sizes and modification times; reads no file."""
    state = hashlib.blake2b(digest_size=16)
    total = 0
    for file in files:
        try:
            found = file.path.stat()
        except OSError as error:
            raise unreadable(file, error) from error
        total += found.st_size
        state.update(f"{file.path.resolve()}\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
    return total, state.hexdigest()


def _hash_contents(files: Sequence[SourceFile]) -> str:
    total = hashlib.blake2b(digest_size=16)
    for file in files:
        try:
            with file.path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "blake2b").digest()
        except OSError as error:
            raise unreadable(file, error) from error
        # Digests have one length and names no zero byte, so the concatenation is unambiguous.
        total.update(file.name.encode("utf-8", "surrogateescape") + b"\0" + digest)
    return total.hexdigest()


def _decode(file: SourceFile, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"TextFiles: {file.path} is not UTF-8 text (byte {error.start} is "
            f"0x{data[error.start]:02x}). Convert it, or set pattern so that it is left out."
        ) from error


def _is_library_source(name: str) -> bool:
    # `_sysconfigdata*` describes how this interpreter was built, with its paths.
    return name.endswith(".py") and not name.rpartition("/")[2].startswith("_sysconfigdata")


def _matcher(pattern: str) -> Callable[[str], bool]:
    """Compiles a pattern of `**`, `*`, `?` and `[...]` to a function that matches relative names.

    Path.glob is not used because it silently skips folders that it may not read.
    """
    pieces = re.split(r"(\*\*/|\*\*|\*|\?|\[!?[^\]]+\])", pattern)
    special = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    expressions = [
        special.get(piece) or (f"[^{piece[2:]}" if piece[:2] == "[!" else piece)
        if index % 2
        else re.escape(piece)
        for index, piece in enumerate(pieces)
    ]
    compiled = re.compile("".join(expressions), re.DOTALL)
    return lambda name: compiled.fullmatch(name) is not None


def _fixed_prefix(path: Path) -> Path:
    """Returns the folders of a pattern before its first wildcard."""
    fixed = Path(path.anchor)
    for part in path.parts[len(fixed.parts) :]:
        if glob.has_magic(part):
            break
        fixed /= part
    return fixed
