"""Rotary positions as config.json writes them. A file a scaling, known by being here."""

from dovetail.config import import_submodules
from dovetail.models.rotary.format import (
    ScalingFormat,
    original_length,
    register_scaling,
    rotary_from_hf,
    rotary_kind,
    rotary_number,
    rotary_of,
    rotary_parameters,
    rotary_to_hf,
)

import_submodules(__name__)

__all__ = [
    "ScalingFormat",
    "original_length",
    "register_scaling",
    "rotary_from_hf",
    "rotary_kind",
    "rotary_number",
    "rotary_of",
    "rotary_parameters",
    "rotary_to_hf",
]
