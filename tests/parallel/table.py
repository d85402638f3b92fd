"""Every parallelism and mixtures of them: what several devices must train under as one does."""

from __future__ import annotations

import os
from typing import Any

from dovetail.learner import Accumulate, GPipe, OneForwardOneBackward

_GPIPE = GPipe.Config(microbatches=2)
_ONE_BY_ONE = OneForwardOneBackward.Config(microbatches=2)
_INTERLEAVED = OneForwardOneBackward.Config(microbatches=2, repeats=2)
# Four stages are busy with no fewer than four microbatches.
_FOUR_BY_ONE = OneForwardOneBackward.Config(microbatches=4)
_FOUR_AT_ONCE = GPipe.Config(microbatches=4)
# `sequence` takes ulysses where heads divide.
_RING = {"attention": "ring"}

# How each is written: the mesh, and beside it how gradients are made, modifiers and kernels.
SINGLE: dict[str, dict[str, Any]] = {
    "data": {"mesh": {"data": 8}},
    "fsdp": {"mesh": {"fsdp": 8}},
    "tensor": {"mesh": {"model": 4}},
    "tensor, sequence parallel": {"mesh": {"model": 4}, "modifiers": ("sequence-parallel",)},
    "context": {"mesh": {"sequence": 4}},
    "gpipe": {"mesh": {"pipeline": 4}, "gradients": _FOUR_AT_ONCE},
    "1f1b": {"mesh": {"pipeline": 4}, "gradients": _FOUR_BY_ONE},
    "interleaved": {"mesh": {"pipeline": 2}, "gradients": _INTERLEAVED},
}
EXPERTS: dict[str, dict[str, Any]] = {
    "experts": {"mesh": {"expert": 8}},
    "experts x fsdp": {"mesh": {"expert": 4, "fsdp": 2}},
    "experts x tensor": {"mesh": {"expert": 4, "model": 2}},
    "experts x context": {"mesh": {"expert": 4, "sequence": 2}},
    "1f1b x experts x tensor": {
        "mesh": {"pipeline": 2, "expert": 2, "model": 2},
        "gradients": _ONE_BY_ONE,
    },
}
MIXTURES: dict[str, dict[str, Any]] = {
    "data x fsdp": {"mesh": {"data": 2, "fsdp": 4}},
    "fsdp x tensor": {"mesh": {"fsdp": 4, "model": 2}},
    "data x fsdp x tensor": {"mesh": {"data": 2, "fsdp": 2, "model": 2}},
    "fsdp x context": {"mesh": {"fsdp": 4, "sequence": 2}},
    "fsdp x context x tensor": {"mesh": {"fsdp": 2, "sequence": 2, "model": 2}},
    "data x tensor, sequence parallel": {
        "mesh": {"data": 2, "model": 4},
        "modifiers": ("sequence-parallel",),
    },
    "gpipe x data": {"mesh": {"pipeline": 2, "data": 4}, "gradients": _GPIPE},
    "1f1b x fsdp": {"mesh": {"pipeline": 4, "fsdp": 2}, "gradients": _FOUR_BY_ONE},
    "1f1b x fsdp x tensor": {
        "mesh": {"pipeline": 2, "fsdp": 2, "model": 2},
        "gradients": _ONE_BY_ONE,
    },
    "1f1b x context x data": {
        "mesh": {"pipeline": 2, "sequence": 2, "data": 2},
        "gradients": _ONE_BY_ONE,
    },
    "interleaved x context x tensor": {
        "mesh": {"pipeline": 2, "sequence": 2, "model": 2},
        "gradients": _INTERLEAVED,
    },
}
RINGS: dict[str, dict[str, Any]] = {
    "context of eight": {"mesh": {"sequence": 8}},
    "ring": {"mesh": {"sequence": 8}, "prefer": _RING},
    "fsdp x ring x tensor": {
        "mesh": {"fsdp": 2, "sequence": 2, "model": 2},
        "prefer": _RING,
    },
    "1f1b x ring x data": {
        "mesh": {"pipeline": 2, "sequence": 2, "data": 2},
        "gradients": _ONE_BY_ONE,
        "prefer": _RING,
    },
}
WITH_RINGS = ("tiny-lm", "deepseek-v3")
WITH_EXPERTS = ("mixtral-8x7b", "deepseek-v3")
TWO_PARTS = Accumulate.Config(microbatches=2)


def rows(model: str) -> dict[str, dict[str, Any]]:
    """Returns what a model is trained under, by name: the arguments of `train` but for its name."""
    experts = EXPERTS if model in WITH_EXPERTS else {}
    rings = RINGS if model in WITH_RINGS else {}
    return {
        name: {"gradients": TWO_PARTS, **how, "mesh": {"fsdp": 1} | how["mesh"]}
        for name, how in {**SINGLE, **experts, **MIXTURES, **rings}.items()
    }


# What of the other models two processes train under by default: what is their own crosses.
CROSSING = {
    "mixtral-8x7b": ("experts", "experts x tensor", "1f1b x experts x tensor"),
    "tiny-hybrid": ("fsdp", "context", "1f1b"),
    "deepseek-v3": ("fsdp x tensor", "context of eight", "ring"),
}


def rows_of_processes(model: str) -> dict[str, dict[str, Any]]:
    """Returns the rows for several processes: all for the dense model, and of others a few.

    All for all take a quarter of an hour; DOVETAIL_FULL_TABLE=1 asks for that.
    """
    found = rows(model)
    if model not in CROSSING or os.environ.get("DOVETAIL_FULL_TABLE"):
        return found
    return {name: found[name] for name in CROSSING[model]}
