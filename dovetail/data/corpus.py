"""Corpora: the documents to learn from. The default one is on every machine that runs Python."""

from __future__ import annotations

import glob
import re
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

from dovetail.config import REQUIRED, ConfigError, Part
from dovetail.data.files import SourceFile, find_files, fingerprint_files, read_bytes
from dovetail.data.interfaces import Document

# Folders of the standard library that hold other people's code, tests, or generated tables:
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


class StandardLibrary(Part):
    """The Python standard library's own sources on this machine: some 10 MB, no download."""

    class Config(Part.Config["StandardLibrary"]):
        """Which folders to leave out."""

        exclude: tuple[str, ...] = _NOT_LIBRARY

    def __init__(self, config: Config) -> None:
        """Keeps the config; looks at no file yet."""
        super().__init__(config)
        self._exclude = config.exclude

    @property
    def name(self) -> str:
        """A short name for people."""
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


class TextFiles(Part):
    """The user's own UTF-8 text files.

    A file longer than `passage_bytes` is cut at line ends into passages, each a document of its
    own, so that even a single long file has something to train on and something to hold out. Links
    to folders are not followed.
    """

    class Config(Part.Config["TextFiles"]):
        """Where the files are."""

        files: str = REQUIRED
        """A folder, a file, or a pattern such as `notes/**/*.md`; `~` is the home folder."""
        pattern: str = "**/*.txt"
        """Which files of a folder to take, where `files` is a folder."""
        passage_bytes: int = 65536

    def __init__(self, config: Config) -> None:
        """Keeps the config; looks at no file yet."""
        super().__init__(config)
        if config.passage_bytes < 4:
            raise ConfigError(
                f"TextFiles.passage_bytes: expected at least 4 (the longest UTF-8 character), got "
                f"{config.passage_bytes}."
            )
        self._path = config.files
        self._pattern = config.pattern
        self._passage_bytes = config.passage_bytes

    @property
    def name(self) -> str:
        """A short name for people: that of the folder or file."""
        stem = _fixed_part(Path(self._path).expanduser()).resolve().name
        safe = "".join(letter if letter.isalnum() else "-" for letter in stem).strip("-")
        return safe[:40] or "text"

    def fingerprint(self) -> str:
        """Returns a hash of the names and contents of all files and of how they are cut."""
        return f"{fingerprint_files(self._files())}/{self._passage_bytes}"

    def documents(self) -> Iterator[Document]:
        """Yields the passages of every file."""
        for file in self._files():
            text = _decode(file, read_bytes(file))
            passages = list(cut_into_passages(text, self._passage_bytes))
            for index, passage in enumerate(passages):
                yield Document(file.name if len(passages) == 1 else f"{file.name}#{index}", passage)

    def _files(self) -> list[SourceFile]:
        path = Path(self._path).expanduser()
        if path.is_file():
            return [SourceFile(path.name, path)]
        if path.is_dir():
            return self._matching(path, self._pattern)
        root = _fixed_part(path)
        if root != path and root.is_dir():
            return self._matching(root, path.relative_to(root).as_posix())
        raise ConfigError(
            f"TextFiles.files: there is no file or folder {str(path)!r} (relative paths start at "
            f"{Path.cwd()}). Set it to a folder, a file, or a pattern such as 'notes/**/*.md'."
        )

    def _matching(self, root: Path, pattern: str) -> list[SourceFile]:
        depth = None if "**" in pattern else pattern.count("/")
        found = find_files(root, _expression(pattern), depth=depth)
        if not found:
            files = find_files(root, lambda _: True, depth=depth)
            others = sorted({file.path.suffix for file in files} - {""})
            hint = f" It holds files that end in {', '.join(others[:8])}." if others else ""
            raise ConfigError(
                f"TextFiles: no file in {root} matches {pattern!r}.{hint} "
                "Set pattern to the files to read, such as '**/*.md'."
            )
        return found


def cut_into_passages(text: str, limit: int) -> Iterator[str]:
    """Yields pieces of at most `limit` bytes that make up the text, cut at line ends if it can."""
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


def _decode(file: SourceFile, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"TextFiles: {file.path} is not UTF-8 text (byte {error.start} is "
            f"0x{data[error.start]:02x}). Convert it, or set pattern so that it is left out."
        ) from error


def _is_library_source(name: str) -> bool:
    # `_sysconfigdata*` lists how this very interpreter was built, paths and all.
    return name.endswith(".py") and not name.rpartition("/")[2].startswith("_sysconfigdata")


def _expression(pattern: str) -> Callable[[str], bool]:
    """Returns what says whether a relative name matches a pattern of `**`, `*`, `?` and `[...]`.

    Path.glob would do, but it passes over folders that it may not read without a word.
    """
    pieces = re.split(r"(\*\*/|\*\*|\*|\?|\[!?[^\]]+\])", pattern)
    special = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = [
        special.get(piece) or (f"[^{piece[2:]}" if piece[:2] == "[!" else piece)
        if index % 2
        else re.escape(piece)
        for index, piece in enumerate(pieces)
    ]
    matcher = re.compile("".join(parts), re.DOTALL)
    return lambda name: matcher.fullmatch(name) is not None


def _fixed_part(path: Path) -> Path:
    """Returns the part of a pattern that comes before its first wildcard."""
    fixed = Path(path.anchor)
    for part in path.parts[len(fixed.parts) :]:
        if glob.has_magic(part):
            break
        fixed /= part
    return fixed
