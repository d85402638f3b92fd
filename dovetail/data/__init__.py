"""Data: corpora, tokenizers, the token store, packing, data order and inputs.

Importing this package imports no JAX.
"""

from dovetail.data.answers import Answers
from dovetail.data.chat import ChatFiles
from dovetail.data.input import TokenInput
from dovetail.data.inspection import (
    DataInspection,
    InspectedPiece,
    InspectedRow,
    InspectedSource,
    TextSpan,
    inspect_data,
)
from dovetail.data.interfaces import (
    TRAIN,
    CanChangeData,
    CanSkipBatches,
    Corpus,
    Document,
    EvaluationInput,
    HasHeldOut,
    HasHeldOutSources,
    HasPreparedData,
    HasTokenizer,
    HasVocabulary,
    Input,
    PreparedData,
    SplitSummary,
    Tokenizer,
    has_tokenizer,
    stop_tokens_of,
)
from dovetail.data.kept import keep_data
from dovetail.data.mixture import MixtureInput, MixtureSource, MixtureStage
from dovetail.data.packing import (
    Arrangement,
    BestFit,
    ConcatenateAndSplit,
    DocumentPiece,
    DropLong,
    FillInTheMiddle,
    IndexedPacking,
    IndexPlace,
    PackedRows,
    Packing,
    PackingStatistics,
    PadEach,
    PieceTokens,
    PrefixLM,
    SplitLong,
    TokenTransform,
    TruncateLong,
)
from dovetail.data.prefetch import Prefetcher
from dovetail.data.preparation import prepare
from dovetail.data.pretrained_tokenizer import PretrainedTokenizer
from dovetail.data.python_lines import PythonLines
from dovetail.data.sources import (
    BadRecordCount,
    FileFormat,
    Files,
    StandardLibrary,
    TextFiles,
    UnsetCorpus,
)
from dovetail.data.store import DamagedStoreError, data_folder
from dovetail.data.store_listing import list_stores, prune_stores, stores_report, verify_stores
from dovetail.data.tokenizer import BytePairTokenizer, ByteTokenizer
from dovetail.data.tokenizer_files import end_of_text_id, pretrained_tokenizer
from dovetail.data.trigram import trigram_bits_per_byte

__all__ = [
    "TRAIN",
    "Answers",
    "Arrangement",
    "BadRecordCount",
    "BestFit",
    "BytePairTokenizer",
    "ByteTokenizer",
    "CanChangeData",
    "CanSkipBatches",
    "ChatFiles",
    "ConcatenateAndSplit",
    "Corpus",
    "DamagedStoreError",
    "DataInspection",
    "Document",
    "DocumentPiece",
    "DropLong",
    "EvaluationInput",
    "FileFormat",
    "Files",
    "FillInTheMiddle",
    "HasHeldOut",
    "HasHeldOutSources",
    "HasPreparedData",
    "HasTokenizer",
    "HasVocabulary",
    "IndexPlace",
    "IndexedPacking",
    "Input",
    "InspectedPiece",
    "InspectedRow",
    "InspectedSource",
    "MixtureInput",
    "MixtureSource",
    "MixtureStage",
    "PackedRows",
    "Packing",
    "PackingStatistics",
    "PadEach",
    "PieceTokens",
    "Prefetcher",
    "PrefixLM",
    "PreparedData",
    "PretrainedTokenizer",
    "PythonLines",
    "SplitLong",
    "SplitSummary",
    "StandardLibrary",
    "TextFiles",
    "TextSpan",
    "TokenInput",
    "TokenTransform",
    "Tokenizer",
    "TruncateLong",
    "UnsetCorpus",
    "data_folder",
    "end_of_text_id",
    "has_tokenizer",
    "inspect_data",
    "keep_data",
    "list_stores",
    "prepare",
    "pretrained_tokenizer",
    "prune_stores",
    "stop_tokens_of",
    "stores_report",
    "trigram_bits_per_byte",
    "verify_stores",
]
