"""Hugging Face files, both ways, driven by the families' mappings. Knows no family by name."""

from dovetail.interop.adapters import export_adapter
from dovetail.interop.exporting import Exported, export_hf
from dovetail.interop.importing import Imported, import_hf
from dovetail.interop.matching import family_of, model_tensors
from dovetail.interop.merging import unwrapped
from dovetail.interop.runs import stop_tokens

__all__ = [
    "Exported",
    "Imported",
    "export_adapter",
    "export_hf",
    "family_of",
    "import_hf",
    "model_tensors",
    "stop_tokens",
    "unwrapped",
]
