"""Every parallelism and mixtures of them, against one device: the same losses and gradients.

All at the same micro-batches, in float32, for several steps. `make slow` runs the whole table.
"""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.learner import Accumulate, GPipe, OneForwardOneBackward
from tests.parallel.steps import MODELS, OF_CHANGES, TOLERANCE, assert_same, on_one_device, train

_GPIPE = GPipe.Config(microbatches=2)
_ONE_BY_ONE = OneForwardOneBackward.Config(microbatches=2)
_INTERLEAVED = OneForwardOneBackward.Config(microbatches=2, rounds=2)
# Four stages are busy with no fewer than four micro-batches.
_FOUR_BY_ONE = OneForwardOneBackward.Config(microbatches=4)
_FOUR_AT_ONCE = GPipe.Config(microbatches=4)
# `sequence` takes ulysses where heads divide.
_RING = {"attention": "ring"}

# How each is written: the mesh, and beside it how gradients are made, modifiers and kernels.
SINGLE: dict[str, dict[str, Any]] = {
    "data": {"mesh": {"data": 8}},
    "fsdp": {"mesh": {"fsdp": 8}},
    "tensor": {"mesh": {"model": 4}},
    "tensor, split streams": {"mesh": {"model": 4}, "modifiers": ("stream-parallel",)},
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
    "data x tensor, split streams": {
        "mesh": {"data": 2, "model": 4},
        "modifiers": ("stream-parallel",),
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
# One for each model in the default tests.
QUICK = {
    ("tiny-lm", "fsdp x context x tensor"),
    ("tiny-lm", "fsdp x ring x tensor"),
    ("mixtral-8x7b", "experts x fsdp"),
    ("tiny-hybrid", "data x fsdp x tensor"),
    ("deepseek-v3", "fsdp x tensor"),
}


def cases() -> list[Any]:
    found = []
    for model in MODELS:
        experts = EXPERTS if model in WITH_EXPERTS else {}
        rings = RINGS if model in WITH_RINGS else {}
        for name, how in {**SINGLE, **experts, **MIXTURES, **rings}.items():
            marks = () if (model, name) in QUICK else (pytest.mark.sweep,)
            found.append(pytest.param(model, how, id=f"{model}: {name}", marks=marks))
    return found


@pytest.mark.parametrize(("model", "how"), cases())
def test_it_trains_as_one_device_does(model: str, how: dict[str, Any]) -> None:
    gradients = how.get("gradients", Accumulate.Config(microbatches=2))
    more = (how.get("modifiers", ()), how.get("prefer"))
    got = train(model, {"fsdp": 1} | how["mesh"], gradients, *more)
    of_changes = OF_CHANGES.get(model, TOLERANCE)
    assert_same(got, on_one_device(model, gradients.microbatches), of_changes)
