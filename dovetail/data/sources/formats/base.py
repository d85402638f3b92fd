"""What a file format is: how a file is recognized, cut into shards, and read.

A format of your own is a subclass; name it with `format=`.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dovetail.config import Component, ConfigError, Error
from dovetail.data.interfaces import BadRecord, CorpusShard, Document
from dovetail.data.sources.source_file import SourceFile, unreadable
from dovetail.data.sources.text_field import TextField

# Errors that a program causes and not a file.
_OF_PROGRAMS = (AssertionError, AttributeError, NameError, TypeError)


@dataclass(frozen=True)
class ReadSettings:
    """What decides the documents of a file, beside its format."""

    text: TextField
    passage_bytes: int
    shard_bytes: int
    """About how large a shard should be."""


@dataclass(frozen=True)
class FileHead:
    """The name of a file and its first bytes, by which its format is recognized."""

    HEAD_BYTES: ClassVar[int] = 2**16

    name: str
    data: bytes
    is_cut: bool = False
    """Whether the file may have more bytes than these."""


class FileFormat(Component):
    """The base of file formats."""

    class Config(Component.Config["FileFormat"]):
        """No fields."""

    title: ClassVar[str] = ""
    """What messages call the format."""
    has_records: ClassVar[bool] = True
    """Whether it has records with named values, and not text or token ids alone."""
    suffixes: ClassVar[tuple[str, ...]] = ()
    """How names of its files usually end; the first one is proposed in messages."""

    def recognizes(self, head: FileHead) -> bool:
        """Says whether a file is of this format, by its first bytes and its name."""
        raise NotImplementedError

    def parts(self, file: SourceFile) -> Sequence[SourceFile]:
        """Returns all files that hold the content of one; most formats have one file."""
        return [file]

    def is_part(self, name: str, names: Collection[str]) -> bool:
        """Says whether a file is part of another one of these, by their names."""
        return False

    def shards(self, file: SourceFile, settings: ReadSettings) -> list[CorpusShard]:
        """Cuts a file into shards, always the same ones; by default, it is one."""
        return [CorpusShard(file.name, size=file.size())]

    def read(
        self, file: SourceFile, shard: CorpusShard, settings: ReadSettings
    ) -> Iterator[Document | BadRecord]:
        """Yields the documents of a shard in bounded memory, and the records that have none."""
        raise NotImplementedError

    def identity(self, settings: ReadSettings) -> str:
        """Returns what the documents of given files depend on."""
        raise NotImplementedError

    def load(self, module: str, where: str) -> Any:
        """Imports a library that not everybody has installed; `where` is the file that needs it."""
        try:
            return importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(
                f"{where}: reading {self.title} needs {module.partition('.')[0]} ({error}). "
                "Run pip install 'dovetail[data]'."
            ) from error

    @contextlib.contextmanager
    def explained_errors(self, file: SourceFile) -> Iterator[None]:
        """Turns whatever a library says about a damaged file into one ConfigError."""
        try:
            yield
        except Error:
            raise
        except OSError as error:
            if error.errno is not None:  # of the file system, not of a parser
                raise unreadable(file, error) from error
            raise self.damaged(file, str(error)) from error
        except Exception as error:  # parsers of damaged bytes raise nearly anything
            if type(error) in _OF_PROGRAMS:
                raise
            raise self.damaged(file, str(error) or type(error).__name__) from error

    def damaged(self, file: SourceFile, problem: str) -> ConfigError:
        """Returns the error for a file that cannot be read as this format."""
        reason = problem.strip().splitlines()[0].rstrip(".") if problem.strip() else "no reason"
        return ConfigError(
            f"{file.where} cannot be read as {self.title}: {reason}. It may be incomplete or of "
            "another format. Copy it again, or leave it out with exclude=...."
        )


def range_shards(file: str, count: int, size: int, shard_bytes: int) -> list[CorpusShard]:
    """Cuts `count` records of `size` bytes together into ranges of about `shard_bytes`."""
    per_shard = max(1, count * shard_bytes // max(size, 1))
    starts = range(0, count, per_shard)
    return [
        CorpusShard(file, start, min(start + per_shard, count), size // len(starts))
        for start in starts
    ]
