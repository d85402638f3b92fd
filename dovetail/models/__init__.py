"""Model families: functions that compose configs of the layer library.

A family is a file: how its config.json reads as a config and back, and which of its tensors is
which parameter. It has a class of its own only where its mathematics is new, and then that is a
layer. This door leads to none in particular: a family is imported from its own file.
"""

from dovetail.models.causal_lm import CausalLM, TokenDecoder
from dovetail.models.family import Family, families, find_family, register_family

__all__ = [
    "CausalLM",
    "Family",
    "TokenDecoder",
    "families",
    "find_family",
    "register_family",
]
