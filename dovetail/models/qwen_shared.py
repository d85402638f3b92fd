"""What the dense Qwen2 and Qwen3 have in common."""

from __future__ import annotations

from typing import Any

from dovetail.models.hub import TINY

# What keys mean that are left out, in both.
LEFT_OUT: dict[str, Any] = {
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "max_window_layers": 28,
}


def shared_tiny() -> dict[str, Any]:
    """Returns what the tiny forms of both have in common: tied, windows from the second layer."""
    return TINY | {
        "num_hidden_layers": 3,
        "rms_norm_eps": 1e-6,
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
        "tie_word_embeddings": True,
    }
