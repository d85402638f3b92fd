"""The default corpus, which is on every machine that runs Python."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from dovetail.config import Component, ConfigError
from dovetail.data.interfaces import CorpusShard, Document
from dovetail.data.sources.fingerprint import fingerprint_files
from dovetail.data.sources.listing import find_files
from dovetail.data.sources.source_file import LocalFile, unreadable

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

    def shards(self) -> Sequence[CorpusShard]:
        """Returns one shard a file."""
        return [CorpusShard(file.name, size=file.size()) for file in self._files()]

    def read(self, shard: CorpusShard) -> Iterator[Document]:
        """Yields a source file if it is UTF-8; the few in older encodings are left out."""
        file = LocalFile(shard.file, _root() / shard.file)
        try:
            data = file.path.read_bytes()
        except OSError as error:
            raise unreadable(file, error) from error
        try:
            yield Document(file.name, data.decode("utf-8"))
        except UnicodeDecodeError:
            return

    def documents(self) -> Iterator[Document]:
        """Yields every source file that is UTF-8."""
        for shard in self.shards():
            yield from self.read(shard)

    def _files(self) -> list[LocalFile]:
        root = _root()
        files = find_files(root, _is_library_source, self._exclude) if root.is_dir() else []
        if not files:
            raise ConfigError(
                f"StandardLibrary: no Python sources in {root}; this Python seems to be installed "
                "without them. Install one that has them, or train on your own text: set the "
                "input's corpus to Files.Config(files=...)."
            )
        return files


def _root() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _is_library_source(name: str) -> bool:
    # `_sysconfigdata*` describes how this interpreter was built, with its paths.
    return name.endswith(".py") and not name.rpartition("/")[2].startswith("_sysconfigdata")
