"""Packing: how the documents of a split become rows of one length.

Every packing gives random access: any row of any split is made directly, from the memory-mapped
tokens and, for some packings, a memory-mapped index.
"""

from dovetail.data.packing.batch import TARGET_BYTES
from dovetail.data.packing.best_fit import BestFit
from dovetail.data.packing.concatenate import ConcatenateAndSplit
from dovetail.data.packing.indexed import Arrangement, IndexedPacking, PadEach
from dovetail.data.packing.interfaces import (
    DocumentPiece,
    IndexPlace,
    PackedRows,
    Packing,
    PackingStatistics,
)
from dovetail.data.packing.long_documents import (
    DropLong,
    LongDocuments,
    SplitLong,
    TruncateLong,
)
from dovetail.data.packing.pieces import Pieces
from dovetail.data.packing.transforms import (
    FillInTheMiddle,
    PieceTokens,
    PrefixLM,
    TokenTransform,
)

__all__ = [
    "TARGET_BYTES",
    "Arrangement",
    "BestFit",
    "ConcatenateAndSplit",
    "DocumentPiece",
    "DropLong",
    "FillInTheMiddle",
    "IndexPlace",
    "IndexedPacking",
    "LongDocuments",
    "PackedRows",
    "Packing",
    "PackingStatistics",
    "PadEach",
    "PieceTokens",
    "Pieces",
    "PrefixLM",
    "SplitLong",
    "TokenTransform",
    "TruncateLong",
]
