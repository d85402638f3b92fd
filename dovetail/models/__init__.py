"""Model families: functions that compose configs of the layer library.

Each family is one file. It converts a Hugging Face config.json to a config and back, and maps the
tensors of a checkpoint to parameters. New mathematics belongs in a layer, not here.
"""

from dovetail.models.causal_lm import CausalLM, TokenDecoder
from dovetail.models.family import ModelFamily, families, find_family, register_family

__all__ = [
    "CausalLM",
    "ModelFamily",
    "TokenDecoder",
    "families",
    "find_family",
    "register_family",
]
