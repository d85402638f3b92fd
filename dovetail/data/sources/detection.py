"""Which format files have, by their first bytes and their names; mixtures are refused."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from pathlib import PurePosixPath

from dovetail.config import ConfigError
from dovetail.data.sources.formats import (
    ArrayRecord,
    Arrow,
    FileFormat,
    FileHead,
    JSONLines,
    MegatronTokens,
    NumPyTokens,
    Parquet,
    PlainText,
)
from dovetail.data.sources.formats.compressed import compression
from dovetail.data.sources.source_file import SourceFile
from dovetail.utils import plural

# In the order in which they are tried: what is recognized by its first bytes precedes text.
FORMATS: tuple[type[FileFormat], ...] = (
    Parquet,
    Arrow,
    ArrayRecord,
    MegatronTokens,
    NumPyTokens,
    JSONLines,
    PlainText,
)

# Of files behind URLs, so many of each kind of name are opened; others have the name's format.
_OPENED_PER_SUFFIX = 8

_KNOWN_STARTS = {
    b"PK\x03\x04": "a zip archive; unpack it",
    b"BZh": "bzip2; compress it with gzip or zstandard",
    b"\xfd7zXZ": "xz; compress it with gzip or zstandard",
    b"\xff\xfe": "UTF-16 text; convert it to UTF-8",
    b"\xfe\xff": "UTF-16 text; convert it to UTF-8",
}


@functools.cache
def built_in_formats() -> tuple[FileFormat, ...]:
    """Returns the formats that are recognized, with their default configs."""
    return tuple(each.Config().build() for each in FORMATS)


def detect(head: FileHead) -> type[FileFormat] | None:
    """Returns the format of a file, or None."""
    return next((type(each) for each in built_in_formats() if each.recognizes(head)), None)


def without_parts(files: Sequence[SourceFile], formats: Sequence[FileFormat]) -> list[SourceFile]:
    """Returns the files that are no parts of others, such as the tokens of a Megatron index."""
    names = {file.name for file in files}
    return [file for file in files if not any(each.is_part(file.name, names) for each in formats)]


def common_format(files: Sequence[SourceFile], where: str) -> FileFormat:
    """Returns the format that all files have; refuses mixtures and unknown ones.

    Args:
        files: at least one file.
        where: the path of the corpus's config, for messages.
    """
    found: dict[type[FileFormat] | None, list[SourceFile]] = defaultdict(list)
    for file, head in _heads(files):
        found[detect(head)].append(file)
    if not found:
        return PlainText.Config().build()  # all files are empty
    (only, *others) = found
    if others:
        raise _mixed(found, where)
    if only is None:
        raise _unknown(found[None][0], where)
    return only.Config().build()


def refuse_other_format(
    files: Sequence[SourceFile], format: FileFormat, where: str, entries: Sequence[str]
) -> None:
    """Raises if a file is of another format than the one that the user named."""
    for file, head in _heads(files):
        found = detect(head)
        # What looks like text may be a damaged file of any format, which its reader explains.
        if found is None or found is PlainText or isinstance(format, found):
            continue
        if format.recognizes(head) and not isinstance(format, PlainText):
            continue
        corpus = where or "corpus"
        raise ConfigError(
            f"{file.where} looks like {found.title}, not {format.title}. Write {corpus}=Files "
            f"{corpus}.files={','.join(entries)} (or {corpus}.format={found.__name__})."
        )


def _heads(files: Sequence[SourceFile]) -> list[tuple[SourceFile, FileHead]]:
    """Returns the first bytes of files, without empty files."""
    opened: dict[str, int] = defaultdict(int)
    heads = []
    for file in files:
        suffix = "".join(PurePosixPath(file.name).suffixes[-2:])
        opened[suffix] += 1
        if file.local_path is None and opened[suffix] > _OPENED_PER_SUFFIX:
            continue
        data = file.head(FileHead.HEAD_BYTES)
        if data:
            heads.append((file, FileHead(file.name, data, is_cut=len(data) == FileHead.HEAD_BYTES)))
    return heads


def _mixed(found: dict[type[FileFormat] | None, list[SourceFile]], where: str) -> ConfigError:
    kinds = [
        f"{plural(len(files), 'file')} of {kind.title if kind else 'no known format'} "
        f"(such as {files[0].name})"
        for kind, files in found.items()
    ]
    known = {kind: files for kind, files in found.items() if kind is not None}
    most = max(known.values(), key=len, default=[])
    suffix = PurePosixPath(most[0].name).suffix if most else ".txt"
    corpus = where or "corpus"
    return ConfigError(
        f"{corpus}.files: the files have several formats: {', '.join(kinds)}. Take those of one "
        f"format, such as {corpus}.include='**/*{suffix}', or leave some out with {corpus}.exclude."
    )


def _unknown(file: SourceFile, where: str) -> ConfigError:
    head = FileHead(file.name, file.head(FileHead.HEAD_BYTES))
    corpus = where or "corpus"
    return ConfigError(
        f"{file.where} is of no known format: {_appearance(head)}. Known are "
        f"{', '.join(each.title for each in FORMATS)}. Leave it out with {corpus}.include or "
        f"{corpus}.exclude, or name its format with {corpus}.format."
    )


def _appearance(head: FileHead) -> str:
    packed = compression(head.data)
    if packed:
        return f"it is compressed with {packed}, and holds no JSON Lines; decompress it"
    for start, meaning in _KNOWN_STARTS.items():
        if head.data.startswith(start):
            return f"it looks like {meaning}"
    if head.name.lower().endswith(".json"):
        lines = f"jq -c '.[]' {PurePosixPath(head.name).name}"
        return f"it is one JSON document, and not an object a line, as {lines!r} writes it"
    if head.name.endswith(".bin"):
        return "token ids of Megatron are named by their .idx"
    return f"it begins with the bytes {head.data[:8].hex(' ')}"
