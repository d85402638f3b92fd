"""Model families: functions that compose configs of the layer library."""

from dovetail.models.causal_lm import CausalLM, TokenDecoder
from dovetail.models.llama import llama

__all__ = ["CausalLM", "TokenDecoder", "llama"]
