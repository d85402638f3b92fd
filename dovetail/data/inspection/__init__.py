"""Inspection: what an input gives a model, for people to read. `dovetail data inspect` shows it."""

from dovetail.data.inspection.facts import (
    DataInspection,
    InspectedPiece,
    InspectedRow,
    InspectedSource,
    TextSpan,
)
from dovetail.data.inspection.inspect import inspect_data

__all__ = [
    "DataInspection",
    "InspectedPiece",
    "InspectedRow",
    "InspectedSource",
    "TextSpan",
    "inspect_data",
]
