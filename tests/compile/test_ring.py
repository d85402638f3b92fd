"""Rings for TPUs and GPUs: kernels compute the pieces, and keys go from neighbour to neighbour."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dovetail.kernels import choices, forget_choices, prefer
from dovetail.kernels.attention import Causal, Full, Mask, SlidingWindow, SoftCap
from tests.compile.programs import (
    collectives,
    compiled,
    custom_calls,
    gpus,
    needs_gpu_compiler,
    needs_tpu_compiler,
    tpus,
)
from tests.compile.test_attention import arrays_of, gradients_of

# Four devices, of which each has two pieces of 256 tokens under a causal mask.
LENGTH = 2048
CASES: dict[str, tuple[Mask, dict[str, Any], dict[str, Any]]] = {
    "causal": (Causal(), {}, {}),
    "window, soft cap": (SlidingWindow(700), {"score_map": SoftCap(30.0)}, {"dtype": "float32"}),
    "sinks": (Causal(), {}, {"sinks": True, "widths": (64, 64), "packed": False}),
    "latent": (Causal(), {}, {"heads": (2, 2), "widths": (192, 128)}),
    "wide": (Full(), {}, {"widths": (256, 256)}),
}
# Of its own pieces a device computes three pairs, and of others' two, at first, in a loop, and at
# the last hop, whose keys need not go on; backwards all of them are in the loop, by two kernels. In
# order there is one pair each time.
KERNELS = {"folded": 3 + 2 + 2 + 2 * (3 + 2), "in order": 1 + 1 + 1 + 2 * (1 + 1)}


def check(chips: Callable[..., Any], chip: str, case: str, target: str, piece: str) -> None:
    mask, options, shapes = CASES[case]
    forget_choices()
    with prefer(attention="ring"):
        placement = chips(chip, data=2, sequence=4)
        arrays = arrays_of(length=LENGTH, **({"heads": (2, 1)} | shapes))
        program = compiled(gradients_of(mask, **options), placement, *arrays)
    assert choices()[-1].startswith(f"attention_piece: {piece} (")
    assert custom_calls(program)[target] == KERNELS["folded" if mask == Causal() else "in order"]
    assert collectives(program) <= {"collective-permute", "all-gather"}, "segments are gathered"


@needs_tpu_compiler
@pytest.mark.parametrize(
    ("chip", "case"),
    [
        *(("v5e:2x4", name) for name in CASES),
        *((chip, "causal") for chip in ("v5p:2x2x2", "v6e:2x4")),
    ],
)
def test_on_tpus(chip: str, case: str) -> None:
    check(tpus, chip, case, "tpu_custom_call", "pallas")


@needs_gpu_compiler
@pytest.mark.parametrize(
    ("chip", "case"),
    [*(("h100", name) for name in CASES), *((chip, "causal") for chip in ("a100", "b200"))],
)
def test_on_gpus(chip: str, case: str) -> None:
    check(gpus, chip, case, "__gpu$xla.gpu.triton", "triton")
