"""Sources: where the documents of a corpus come from. `Files` reads files of any format."""

from dovetail.data.sources.bad_records import BadRecordCount
from dovetail.data.sources.files import Files, TextFiles
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
    ReadSettings,
)
from dovetail.data.sources.standard_library import StandardLibrary
from dovetail.data.sources.unset import UnsetCorpus

__all__ = [
    "ArrayRecord",
    "Arrow",
    "BadRecordCount",
    "FileFormat",
    "FileHead",
    "Files",
    "JSONLines",
    "MegatronTokens",
    "NumPyTokens",
    "Parquet",
    "PlainText",
    "ReadSettings",
    "StandardLibrary",
    "TextFiles",
    "UnsetCorpus",
]
