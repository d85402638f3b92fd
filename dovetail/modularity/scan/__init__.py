"""Code scan: how far a feature is spread over any Python code base, by parsing it.

The scan counts names. It sees where a feature is defined, passed, switched on and built, but not
whether it had to be there. `docs/modularity-peers.md` says what that can show.
"""

from dovetail.modularity.scan.history import read_history
from dovetail.modularity.scan.hits import KINDS
from dovetail.modularity.scan.report import FeatureScan, ScanReport, as_text
from dovetail.modularity.scan.scanner import scan
from dovetail.modularity.scan.words import FeatureWords, builtin_words, feature_words, split_words

__all__ = [
    "KINDS",
    "FeatureScan",
    "FeatureWords",
    "ScanReport",
    "as_text",
    "builtin_words",
    "feature_words",
    "read_history",
    "scan",
    "split_words",
]
