"""A model to import and export where any would do: a tiny Llama."""

from __future__ import annotations

from dovetail.models import ModelFamily, families

TINY = {
    "model_type": "llama",
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}


def ensure_llama() -> ModelFamily:
    """Returns the family of that model."""
    return families()["llama"]
