"""Data: corpora, tokenizers, the token store, packing, order and inputs. Knows nothing of models.

Importing this package imports no JAX; the batch records, which need it, are loaded when first
asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dovetail.data.corpus import StandardLibrary, TextFiles
from dovetail.data.folders import DiskFullError, data_folder
from dovetail.data.input import TokenEvaluation, TokenInput
from dovetail.data.interfaces import (
    HELD_OUT,
    TRAIN,
    Corpus,
    Document,
    EvaluationInput,
    Input,
    PreparedData,
    SplitSummary,
    Tokenizer,
)
from dovetail.data.order import SequentialOrder, ShuffledOrder, rows_of_process
from dovetail.data.packing import TARGET_BYTES
from dovetail.data.prefetch import Prefetcher
from dovetail.data.prepare import prepare
from dovetail.data.progress import Progress
from dovetail.data.python_lines import LineReport, PythonLines, python_lines
from dovetail.data.store import DamagedStoreError, TokenStore
from dovetail.data.streaming import StreamingDecoder
from dovetail.data.tokenizer import BytePairTokenizer, ByteTokenizer
from dovetail.data.tokenizer_files import TokenizerFiles
from dovetail.data.trigram import trigram_bits_per_byte

if TYPE_CHECKING:
    from dovetail.module import ArraySpec, Batch, BatchSpec, HostBatch

_FROM_MODULE = frozenset({"ArraySpec", "Batch", "BatchSpec", "HostBatch"})

__all__ = [
    "HELD_OUT",
    "TARGET_BYTES",
    "TRAIN",
    "ArraySpec",
    "Batch",
    "BatchSpec",
    "BytePairTokenizer",
    "ByteTokenizer",
    "Corpus",
    "DamagedStoreError",
    "DiskFullError",
    "Document",
    "EvaluationInput",
    "HostBatch",
    "Input",
    "LineReport",
    "Prefetcher",
    "PreparedData",
    "Progress",
    "PythonLines",
    "SequentialOrder",
    "ShuffledOrder",
    "SplitSummary",
    "StandardLibrary",
    "StreamingDecoder",
    "TextFiles",
    "TokenEvaluation",
    "TokenInput",
    "TokenStore",
    "Tokenizer",
    "TokenizerFiles",
    "data_folder",
    "prepare",
    "python_lines",
    "rows_of_process",
    "trigram_bits_per_byte",
]


def __getattr__(name: str) -> Any:
    """Loads the batch records, and with them JAX, when they are first asked for."""
    if name in _FROM_MODULE:
        from dovetail import module

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
