"""Old names of components, fields, functions, modifiers and their arguments, which still load.

A renamed class or field gets a line here. A class that moves to another file needs none.
"""

from __future__ import annotations

# Old class name -> new one. "subpackage:Name" if the name alone is ambiguous.
OLD_CLASSES: dict[str, str] = {
    "Ahead": "MultiTokenHead",
    "AnyAttention": "BaseAttention",
    "AnyFeedForward": "BaseFeedForward",
    "AnyInputPositions": "BaseInputPositions",
    "AnyLoss": "BaseLoss",
    "AnyNorm": "BaseNorm",
    "AnyPositions": "BasePositions",
    "BranchNorm": "OutputNorm",
    "ByFanIn": "MupOptimizer",
    "ChangedLoss": "LossWrapper",
    "ChangedMixing": "MixingWrapper",
    "ChangedOptimizer": "OptimizerWrapper",
    "ChangedScores": "ScoresWrapper",
    "ChangedSoftmax": "SoftmaxWrapper",
    "ContiguousMemory": "ContiguousKVCache",
    "Cosine": "CosineSchedule",
    "Decaying": "DecaySchedule",
    "DifferentialHeads": "DifferentialAttention",
    "EndsInNorm": "HasFinalNorm",
    "FanScaled": "VarianceScaling",
    "FixedRoom": "FixedCapacity",
    "Fp8Product": "Fp8Matmul",
    "FromRun": "InitFromRun",
    "FromScratch": "RandomInit",
    "GatedHeads": "GatedAttention",
    "GroupedTopExperts": "GroupLimitedSelection",
    "Int8Product": "Int8Matmul",
    "InverseSquareRoot": "InverseSquareRootSchedule",
    "InverseWidth": "InverseWidthScale",
    "KeepAll": "SaveAll",
    "KeepDots": "SaveDots",
    "KeepNothing": "SaveNothing",
    "KeepTags": "SaveNamed",
    "KeptState": "RecurrentStateCache",
    "NoBias": "NoSelectionBias",
    "NoMemory": "NoKVCache",
    "NoState": "NoStateCache",
    "NormedResidual": "BaseResidual",
    "OffloadTags": "OffloadNamed",
    "PartAsModel": "InitSubmoduleFromModel",
    "PartFromRun": "InitSubmoduleFromRun",
    "PlainProduct": "Matmul",
    "PositionedScores": "PositionalScores",
    "RoundedProduct": "QuantizedMatmul",
    "ScaledBranch": "ScaledResidual",
    "TokenizerFiles": "PretrainedTokenizer",
    "TopExperts": "TopKSelection",
    "WarmedUp": "WarmupSchedule",
    "WarmupStableDecay": "WarmupStableDecaySchedule",
    "learner:Constant": "ConstantSchedule",
    "module:Constant": "ConstantInitializer",
}

# (class as it is named now, old field) -> new field. Subclasses inherit the entry.
OLD_FIELDS: dict[tuple[str, str], str] = {
    ("Attention", "memory"): "cache",
    ("BaseAttention", "memory"): "cache",
    ("Dropless", "room"): "capacity_factor",
    ("GPipe", "rounds"): "repeats",
    ("GatedDelta", "memory"): "cache",
    ("InitSubmoduleFromModel", "part"): "submodule",
    ("InitSubmoduleFromRun", "part"): "submodule",
    ("InverseWidthScale", "usual"): "base_scale",
    ("LatentAttention", "memory"): "cache",
    ("Linear", "product"): "matmul",
    ("Mamba2", "memory"): "cache",
    ("MeshLayout", "across"): "dcn",
    ("OffloadNamed", "keep"): "save",
    ("OneForwardOneBackward", "rounds"): "repeats",
    ("Pipeline", "rounds"): "repeats",
    ("ShortConvolution", "memory"): "cache",
    ("SmoothedLoss", "share"): "smoothing",
    ("TextFiles", "pattern"): "include",
    ("Trainer", "start"): "initialization",
}

# (class, field, old key) -> new key, for fields that hold dicts, such as logical axes and ops.
OLD_KEYS: dict[tuple[str, str, str], str] = {
    ("AxisRules", "rules", "stream"): "residual_sequence",
    ("KernelSettings", "prefer", "attention_piece"): "attention_chunk",
    ("KernelSettings", "prefer", "exchange"): "all_to_all",
}

# Old name of a modifier -> new one, as after `--with` and in what a run records.
OLD_MODIFIERS: dict[str, str] = {
    "branch-norm": "output-norm",
    "stream-parallel": "sequence-parallel",
}

# (modifier, old argument) -> new argument, as after `--with`.
OLD_ARGUMENTS: dict[tuple[str, str], str] = {
    ("label-smoothing", "share"): "smoothing",
    ("offload", "keep"): "save",
    ("pipeline", "rounds"): "repeats",
    ("remat", "keep"): "save",
}

# Old name of a listed function -> new one, in the same form as the classes.
OLD_FUNCTIONS: dict[str, str] = {}


def is_old_field(name: str) -> bool:
    """Says whether a field of any class once had this name."""
    return any(old == name for _, old in OLD_FIELDS)
