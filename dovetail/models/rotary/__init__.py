"""Rotary positions as config.json writes them. A file a scaling, known by being here."""

from dovetail.config import import_submodules
from dovetail.models.rotary.format import (
    ScalingFormat,
    register_scaling,
    rotary_from_hf,
    rotary_to_hf,
)

import_submodules(__name__)

__all__ = ["ScalingFormat", "register_scaling", "rotary_from_hf", "rotary_to_hf"]
