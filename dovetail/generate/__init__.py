"""Generation: samplers, and the loop that decodes with the same forward as training."""

from dovetail.generate.generator import Generation, Generator, Piece
from dovetail.generate.interfaces import NextTokenModel, TextDecoder, Tokenizer
from dovetail.generate.memory import with_memory
from dovetail.generate.samplers import Greedy, Sampler, Sampling
from dovetail.generate.text import WholeCharacters

__all__ = [
    "Generation",
    "Generator",
    "Greedy",
    "NextTokenModel",
    "Piece",
    "Sampler",
    "Sampling",
    "TextDecoder",
    "Tokenizer",
    "WholeCharacters",
    "with_memory",
]
