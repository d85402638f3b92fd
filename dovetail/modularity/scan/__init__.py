"""Measures by parsing how far one feature is spread over a Python code base; imports none of it.

It counts names: it sees where a feature is defined, taken as a parameter, switched on and built,
and not whether it had to be. `docs/modularity-peers.md` says what that can show.
"""

from dovetail.modularity.scan.history import Addition, History, read_history
from dovetail.modularity.scan.hits import KINDS, Hit
from dovetail.modularity.scan.measure import scan
from dovetail.modularity.scan.report import FeatureReport, Report
from dovetail.modularity.scan.text import as_text
from dovetail.modularity.scan.words import Vocabulary, built_in, split_words, vocabulary

__all__ = [
    "KINDS",
    "Addition",
    "FeatureReport",
    "History",
    "Hit",
    "Report",
    "Vocabulary",
    "as_text",
    "built_in",
    "read_history",
    "scan",
    "split_words",
    "vocabulary",
]
