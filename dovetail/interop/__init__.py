"""Import from and export to Hugging Face checkpoints, driven by the mappings of model families."""

from dovetail.interop.adapter_export import export_adapter
from dovetail.interop.family_match import matching_family, model_tensors
from dovetail.interop.hf_export import ExportReport, export_hf
from dovetail.interop.hf_import import ImportReport, import_hf
from dovetail.interop.imported_runs import end_tokens_of
from dovetail.interop.run_weights import ModelSource, RunWeights, SliceReader, unwrapped

__all__ = [
    "ExportReport",
    "ImportReport",
    "ModelSource",
    "RunWeights",
    "SliceReader",
    "end_tokens_of",
    "export_adapter",
    "export_hf",
    "import_hf",
    "matching_family",
    "model_tensors",
    "unwrapped",
]
