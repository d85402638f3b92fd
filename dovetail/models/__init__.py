"""Model families: functions that compose configs of the layer library.

A family is a file: how its config.json reads as a config and back, and which of its tensors is
which parameter. It has a class of its own only where its mathematics is new, and then that is a
layer.
"""

from dovetail.models.causal_lm import CausalLM, TokenDecoder
from dovetail.models.family import Family, families, find_family, register_family
from dovetail.models.llama import llama

__all__ = [
    "CausalLM",
    "Family",
    "TokenDecoder",
    "families",
    "find_family",
    "llama",
    "register_family",
]
