"""Files of any format as a corpus: local ones, and those behind the URLs of fsspec."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from dovetail.config import REQUIRED, Component, ConfigError, ConfigOf, incidental
from dovetail.data.interfaces import BadRecord, CorpusShard, Document
from dovetail.data.sources.bad_records import BadRecordCount
from dovetail.data.sources.detection import (
    built_in_formats,
    common_format,
    refuse_other_format,
    without_parts,
)
from dovetail.data.sources.fingerprint import fingerprint_files
from dovetail.data.sources.formats import FileFormat, PlainText, ReadSettings
from dovetail.data.sources.listing import Choice, list_files, stem_of
from dovetail.data.sources.source_file import SourceFile, unreadable
from dovetail.data.sources.text_field import TextField


class Files(Component):
    """The user's own files: text, JSON Lines, Parquet, Arrow, ArrayRecord, or token ids.

    The format is recognized from the files' first bytes and names; `format` names it instead.
    """

    class Config(Component.Config["Files"]):
        """Which files, and what of them."""

        files: str | tuple[str, ...] = REQUIRED
        """A file, a folder, a pattern such as `notes/**/*.md`, or a URL such as `s3://bucket/data`,
        or several of them; `~` is the home folder. Also a folder that `datasets` saved."""
        include: str | tuple[str, ...] = "**"
        """Patterns of the files to take, where `files` is a folder."""
        exclude: str | tuple[str, ...] = ("**/.*", "**/.*/**")
        """Patterns of files to leave out, where `files` is a folder or a pattern."""
        format: ConfigOf[FileFormat] | None = None
        """The format of all files; None recognizes it."""
        text: str = ""
        """The text of a record: a column (`body`), a nested one (`page.text`), or a template
        (`{title}: {body}`); empty for the column `text` or `content`."""
        max_bad: float = incidental(0.0)
        """The share of bad records that are skipped. If there are more, no data is prepared."""
        passage_bytes: int = 65536
        """Plain text that is longer becomes several documents."""
        shard_bytes: int = incidental(8 * 2**20)
        """About how much of the files is one shard, the unit of parallel work."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        _check_ranges(config)
        self._entries = _patterns(config.files)
        self._choice = Choice(_patterns(config.include), _patterns(config.exclude), config.locate())
        text = self.record_text()
        self._settings = ReadSettings(text, config.passage_bytes, config.shard_bytes)
        self.max_bad = config.max_bad

    @property
    def name(self) -> str:
        """The name of the folder or file; of the first one, if there are several."""
        stem = stem_of(self._entries[0])
        safe = "".join(letter if letter.isalnum() else "-" for letter in stem).strip("-")
        return safe[:40] or "text"

    def record_text(self) -> TextField:
        """Returns what takes the text of a record."""
        return TextField(self.config.text, self.config.locate("text"))

    def fingerprint(self) -> str:
        """Returns a hash of the names and contents of all files, and of how they are read.

        Of files behind URLs, the hash that the object store has of them stands for the content.
        """
        parts = [part for file in self._files for part in self._format.parts(file)]
        return f"{fingerprint_files(parts)}/{self._format.identity(self._settings)}"

    def shards(self) -> Sequence[CorpusShard]:
        """Returns the pieces of all files, in the order of the files' names."""
        return [
            shard
            for file in _without_empty(self._files)
            for shard in self._format.shards(file, self._settings)
        ]

    def read(self, shard: CorpusShard) -> Iterator[Document | BadRecord]:
        """Yields the documents of a piece, and the records that have none."""
        file = self._by_name.get(shard.file)
        if file is None:
            raise ConfigError(
                f"corpus {self.name}: there is no file {shard.file!r}. It has been removed since "
                "the corpus was cut into shards. Start again."
            )
        try:
            yield from self._format.read(file, shard, self._settings)
        except OSError as error:
            raise unreadable(file, error) from error

    def documents(self) -> Iterator[Document]:
        """Yields the documents of all files; a ConfigError if too many records are bad."""
        count = BadRecordCount.of(self)
        for file in _without_empty(self._files):
            # Without cutting files into shards, for which those of lines are read once.
            for record in self.read(CorpusShard(file.name)):
                count.add(record)
                if isinstance(record, Document):
                    yield record
                elif count.is_hopeless:
                    raise count.error(self.name)
        count.check(self.name)

    @cached_property
    def _found(self) -> tuple[list[SourceFile], FileFormat]:
        """The files, without those that are parts of others, and their format."""
        files = list_files(self._entries, self._choice)
        where = self._choice.where
        if self.config.format is None:
            files = without_parts(files, built_in_formats())
            return files, common_format(files, where)
        format = self.config.format.build()
        files = without_parts(files, [format])
        refuse_other_format(files, format, where, self._entries)
        return files, format

    @property
    def _files(self) -> list[SourceFile]:
        return self._found[0]

    @property
    def _format(self) -> FileFormat:
        return self._found[1]

    @cached_property
    def _by_name(self) -> dict[str, SourceFile]:
        return {file.name: file for file in self._files}


def _patterns(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


def _without_empty(files: Sequence[SourceFile]) -> list[SourceFile]:
    """Leaves out local files without a byte, which have no format and no documents."""
    return [file for file in files if file.local_path is None or file.size()]


def _check_ranges(config: Files.Config) -> None:
    if config.passage_bytes < 4:
        raise ConfigError(
            f"{config.locate('passage_bytes')}: expected at least 4 (the longest UTF-8 "
            f"character), got {config.passage_bytes}."
        )
    if config.shard_bytes < 1:
        raise ConfigError(
            f"{config.locate('shard_bytes')}: expected at least 1, got {config.shard_bytes}."
        )
    if not 0 <= config.max_bad <= 1:
        raise ConfigError(
            f"{config.locate('max_bad')}: expected a share from 0 to 1, got {config.max_bad}."
        )
    if not config.files:
        raise ConfigError(f"{config.locate('files')}: expected at least one file, got none.")


class TextFiles(Files):
    """The user's own UTF-8 text files: the `.txt` of a folder, or a file or pattern of any name."""

    class Config(Files.Config):
        """The defaults of text."""

        include: str | tuple[str, ...] = "**/*.txt"
        exclude: str | tuple[str, ...] = ()
        format: ConfigOf[FileFormat] | None = PlainText.Config()
