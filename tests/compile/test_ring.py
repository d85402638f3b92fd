"""Rings for TPUs and GPUs: kernels compute the chunks, and KV shards go around by ppermute."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from dovetail.kernels import choices, clear_choices, prefer
from dovetail.kernels.attention import Causal, Full, Mask, SlidingWindow, SoftCap
from tests.compile.programs import (
    collective_kinds,
    compiled,
    custom_calls,
    gpus,
    needs_gpu_compiler,
    needs_tpu_compiler,
    tpus,
)
from tests.compile.test_attention import arrays_of, gradients_of, output_of

# Four devices; under a causal mask each has two chunks of 1024 tokens, of two blocks each.
LENGTH = 8192
CASES: dict[str, tuple[Mask, dict[str, Any], dict[str, Any]]] = {
    "causal": (Causal(), {}, {}),
    "window, soft cap": (SlidingWindow(5000), {"score_map": SoftCap(30.0)}, {"dtype": "float32"}),
    "sinks": (Causal(), {}, {"sinks": True, "widths": (64, 64), "packed": False}),
    "latent": (Causal(), {}, {"heads": (2, 2), "widths": (192, 128)}),
    "wide": (Full(), {}, {"widths": (256, 256)}),
}
# Zigzag: forward, three pairs of its own chunks, two in the loop over hops, two at the last hop,
# whose keys are not sent on. Backward, all hops are in the loop, and there are two kernels.
# Contiguous: one pair each time.
KERNELS = {"zigzag": 3 + 2 + 2 + 2 * (3 + 2), "contiguous": 1 + 1 + 1 + 2 * (1 + 1)}


def check(chips: Callable[..., Any], chip: str, case: str, target: str, chunk: str) -> None:
    mask, options, shapes = CASES[case]
    clear_choices()
    with prefer(attention="ring"):
        placement = chips(chip, data=2, sequence=4)
        arrays = arrays_of(length=LENGTH, **({"heads": (2, 1)} | shapes))
        program = compiled(gradients_of(mask, **options), placement, *arrays)
    assert choices()[-1].startswith(f"attention_chunk: {chunk} (")
    assert custom_calls(program)[target] == KERNELS["zigzag" if mask == Causal() else "contiguous"]
    segments = {"all-gather"} if shapes.get("packed", True) else set()
    assert collective_kinds(program) == {"collective-permute"} | segments


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


@needs_tpu_compiler
def test_saving_the_output_spares_a_second_forward_pass() -> None:
    def program(policy: Any) -> Any:
        def loss(q: Any, k: Any, v: Any, *tokens: Any) -> Any:
            @functools.partial(jax.checkpoint, policy=policy)
            def layer(*arrays: Any) -> Any:
                return output_of(Causal())(*(2 * array for array in arrays), *tokens)

            return jnp.sin(layer(q, k, v).astype(jnp.float32)).sum()

        with prefer(attention="ring"):
            placement = tpus("v5e:2x4", data=2, sequence=4)
            arrays = arrays_of(length=LENGTH, heads=(2, 1))
            return compiled(jax.grad(loss, (0, 1, 2)), placement, *arrays)

    policies = jax.checkpoint_policies
    saved = program(policies.save_only_these_names("attention_output"))
    nothing = program(policies.nothing_saveable)
    assert custom_calls(saved)["tpu_custom_call"] == KERNELS["zigzag"]
    assert custom_calls(nothing)["tpu_custom_call"] == KERNELS["zigzag"] + 3 + 2 + 2


@needs_gpu_compiler
@pytest.mark.parametrize(
    ("chip", "case"),
    [*(("h100", name) for name in CASES), *((chip, "causal") for chip in ("a100-80gb", "b200"))],
)
def test_on_gpus(chip: str, case: str) -> None:
    check(gpus, chip, case, "__gpu$xla.gpu.triton", "triton")
