"""Text generation: prefill, the decode loop, samplers and incremental detokenization."""

from dovetail.generate.cache import with_kv_cache
from dovetail.generate.detokenizer import IncrementalDetokenizer
from dovetail.generate.generator import Generation, GenerationChunk, Generator
from dovetail.generate.interfaces import Detokenizer, NextTokenModel, TokenizerLike
from dovetail.generate.request import check_token_ids
from dovetail.generate.samplers import Greedy, Sampler, Sampling

__all__ = [
    "Detokenizer",
    "Generation",
    "GenerationChunk",
    "Generator",
    "Greedy",
    "IncrementalDetokenizer",
    "NextTokenModel",
    "Sampler",
    "Sampling",
    "TokenizerLike",
    "check_token_ids",
    "with_kv_cache",
]
