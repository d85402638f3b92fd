"""File formats, one file each. Libraries that not everybody has are imported by those who read."""

from dovetail.data.sources.formats.array_record import ArrayRecord
from dovetail.data.sources.formats.arrow import Arrow
from dovetail.data.sources.formats.base import FileFormat, FileHead, ReadSettings
from dovetail.data.sources.formats.json_lines import JSONLines
from dovetail.data.sources.formats.megatron import MegatronTokens
from dovetail.data.sources.formats.numpy_tokens import NumPyTokens
from dovetail.data.sources.formats.parquet import Parquet
from dovetail.data.sources.formats.plain_text import PlainText

__all__ = [
    "ArrayRecord",
    "Arrow",
    "FileFormat",
    "FileHead",
    "JSONLines",
    "MegatronTokens",
    "NumPyTokens",
    "Parquet",
    "PlainText",
    "ReadSettings",
]
