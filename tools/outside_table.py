"""Prints the table of docs/modularity.md: what outside packages add, and the lines of their files.

    python tools/outside_table.py

tests/docs/test_outside_table.py compares the page with it.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "outside"

PACKAGES = {
    "hyper_connections.py": "hyper-connections: four residual streams",
    "mixture_of_depths.py": "mixture-of-depths: tokens that skip layers",
    "per_layer_embeddings.py": "per-layer token embeddings",
    "shared_key_values.py": "keys and values shared between layers",
    "soft_prompt.py": "prompt tuning: learned vectors instead of the first tokens",
    "multi_axis_rotary.py": "rotary positions on several axes (M-RoPE)",
    "fire_bias.py": "FIRE: a learned bias of attention scores",
    "encoder_decoder.py": "an encoder-decoder with cross-attention and T5's relative bias",
    "vision_transformer.py": "a vision transformer",
    "vision_family.py": "a family of vision transformers: input, sizes, files",
    "sophia.py": "Sophia: an optimizer with an estimate of the curvature",
    "sam.py": "SAM: an optimizer with a second gradient",
    "skip_spikes.py": "a fault policy that skips loss spikes",
    "next_fit.py": "a packing of documents that follow each other",
    "own_components.py": "a checkpointer and an input",
}


def main() -> None:
    """Prints the table."""
    print("\n".join(table()))


def table() -> list[str]:
    """Returns the lines of the table, in Markdown."""
    lines = ["| package | file | lines |", "|---|---|---:|"]
    for name, about in PACKAGES.items():
        count = len((FOLDER / name).read_text(encoding="utf-8").splitlines())
        lines.append(f"| {about} | `tests/outside/{name}` | {count} |")
    return lines


if __name__ == "__main__":
    main()
