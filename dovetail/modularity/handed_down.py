"""What parents set on their children, by field: the interface between them.

A parent that declares another field of a child has taken over what is the child's to say, and the
tests fail.
"""

from __future__ import annotations

HANDED_DOWN: dict[str, tuple[str, ...]] = {
    "in_axis": ("LowRankLinear",),
    "in_features": ("LowRankLinear",),
    # Each of the two remembers by itself.
    "memory": (
        "GatedDelta",
        "Mamba2",
    ),
    "mu_dtype": ("Muon",),
    "num_experts": (
        "MixtureOfExperts",
        "TopKRouter",
    ),
    "num_heads": (
        "AnyAttention",
        "Attention",
        "GatedDelta",
        "LatentAttention",
        "Mamba2",
    ),
    "out_axis": ("LowRankLinear",),
    "out_features": ("LowRankLinear",),
    "top_k": (
        "MixtureOfExperts",
        "TopKRouter",
    ),
    "total_steps": ("Learner",),
    "value_width": ("LatentAttention",),
    "vocab_size": (
        "CausalLM",
        "Decoder",
    ),
    "width": (
        "Ahead",
        "AnyAttention",
        "Attention",
        "BranchNorm",
        "CausalLM",
        "Decoder",
        "DifferentialHeads",
        "EndsInNorm",
        "GatedDelta",
        "LatentAttention",
        "Mamba2",
        "MixtureOfExperts",
        "MultiTokenLoss",
        "NormedResidual",
        "ParallelBlock",
        "PostNorm",
        "PreNorm",
        "SandwichNorm",
        "SharedStack",
        "Stack",
        "TransformerBlock",
    ),
}
