"""Record batches of Arrow as documents: what Parquet and Arrow files have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dovetail.config import ConfigError
from dovetail.data.interfaces import BadRecord, Document
from dovetail.data.sources.source_file import SourceFile
from dovetail.data.sources.text_field import NoTextError, TextField

Load = Callable[[str], Any]
"""Imports a module of pyarrow."""


def columns_to_read(file: SourceFile, names: Iterable[str], text: TextField) -> list[str]:
    """Returns the columns that the text needs; a ConfigError if the file lacks one."""
    try:
        return text.columns(names)
    except NoTextError as error:
        raise ConfigError(
            f"{file.where} has {error}. Set text to a column, such as text=body, or to a template."
        ) from error


def read_batches(
    file: SourceFile, batches: Iterable[Any], row: int, text: TextField, load: Load
) -> Iterator[Document | BadRecord]:
    """Yields the documents of batches; `row` is the number of the first row, counted from 0."""
    for batch in batches:
        columns = [_values(column, load) for column in batch.columns]
        for values in zip(*columns, strict=True):
            record = dict(zip(batch.schema.names, values, strict=True))
            try:
                yield Document(f"{file.name}#{row}", text.text(record))
            except NoTextError as error:
                yield BadRecord(f"{file.where}:{row}", str(error))
            row += 1


def _values(column: Any, load: Load) -> list[Any]:
    """Returns a column's values; text that is not UTF-8 stays bytes."""
    arrow, types = load("pyarrow"), load("pyarrow.types")
    if types.is_string(column.type) or types.is_large_string(column.type):
        # As bytes, because Arrow would refuse the whole batch for one invalid character.
        wide = types.is_large_string(column.type)
        column = column.cast(arrow.large_binary() if wide else arrow.binary())
    # The offsets of a damaged file may point outside of its buffers.
    column.validate(full=True)
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if types.is_binary(column.type) or types.is_large_binary(column.type):
        return [_decoded(value) for value in column.to_pylist()]
    return list(column.to_pylist())


def _decoded(value: bytes | None) -> str | bytes | None:
    try:
        return None if value is None else value.decode("utf-8")
    except UnicodeDecodeError:
        return value
