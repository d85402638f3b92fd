"""Attention for TPUs and GPUs: the kernels are in the program, forward and backward."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from dovetail.kernels import choices, clear_choices
from dovetail.kernels.attention import Causal, Full, Mask, SlidingWindow, SoftCap, attention
from dovetail.kernels.attention.gpu import mosaic as mosaic_module
from tests.compile.programs import (
    collective_kinds,
    compiled,
    custom_calls,
    gpus,
    needs_gpu_compiler,
    needs_tpu_compiler,
    tpus,
)
from tests.kernels.attention.cases import aligned_call, arrays
from tests.kernels.attention.compare import TOLERANCES, assert_close, results

QUERIES, KEYS = ("batch", "sequence", "heads", None), ("batch", "sequence", "kv_heads", None)


def gradients_of(mask: Mask, **options: Any) -> Callable[..., Any]:
    """Returns a function from a call's arrays to the gradients of queries, keys and values."""
    output = output_of(mask, **options)
    return jax.grad(lambda *a: jnp.sin(output(*a).astype(jnp.float32)).sum(), (0, 1, 2))


def output_of(mask: Mask, **options: Any) -> Callable[..., Any]:
    """Returns a function from a call's arrays to its output."""

    def output(q: Any, k: Any, v: Any, positions: Any, segments: Any, sinks: Any) -> Any:
        return attention(
            q,
            k,
            v,
            mask=mask,
            q_positions_BS=positions,
            kv_positions_BT=positions,
            q_segment_ids_BS=segments,
            kv_segment_ids_BT=segments,
            aligned=True,
            sinks_H=sinks,
            **options,
        )

    return output


def arrays_of(
    batch: int = 2,
    length: int = 512,
    heads: tuple[int, int] = (4, 2),
    widths: tuple[int, int] = (128, 128),
    dtype: str = "bfloat16",
    packed: bool = True,
    sinks: bool = False,
) -> tuple[Any, ...]:
    """Returns shapes, dtypes and axes of a call's arrays."""
    places = ((batch, length), "int32", ("batch", "sequence"))
    return (
        ((batch, length, heads[0], widths[0]), dtype, QUERIES),
        ((batch, length, heads[1], widths[0]), dtype, KEYS),
        ((batch, length, heads[1], widths[1]), dtype, KEYS),
        places,
        places if packed else None,
        ((heads[0],), "float32", ("heads",)) if sinks else None,
    )


TPU_CASES: dict[str, tuple[Mask, dict[str, Any], dict[str, Any]]] = {
    "causal": (Causal(), {}, {}),
    "window, soft cap": (SlidingWindow(200), {"score_map": SoftCap(30.0)}, {"dtype": "float32"}),
    "sinks": (Causal(), {}, {"sinks": True, "widths": (64, 64), "packed": False}),
    "latent": (Causal(), {}, {"heads": (4, 4), "widths": (192, 128), "length": 640}),
    "wide": (Full(), {}, {"widths": (256, 256), "dtype": "float32", "length": 1024}),
}


@needs_tpu_compiler
@pytest.mark.parametrize(
    ("chip", "case"),
    [
        *(("v5e:2x4", name) for name in TPU_CASES),
        *((chip, name) for chip in ("v5p:2x2x2", "v6e:2x4") for name in ("causal", "wide")),
        ("tpu7x:2x2x1", "causal"),
    ],
)
def test_splash_on_tpus(chip: str, case: str) -> None:
    mask, options, shapes = TPU_CASES[case]
    program = compiled(gradients_of(mask, **options), tpus(chip), *arrays_of(**shapes))
    assert custom_calls(program)["tpu_custom_call"] == 3, "forward, dq, and dk with dv"


@needs_tpu_compiler
def test_splash_runs_on_each_device_without_communication() -> None:
    clear_choices()
    placement = tpus("v5e:2x4", data=2, fsdp=2, model=2)
    program = compiled(gradients_of(Causal()), placement, *arrays_of(batch=8))
    assert custom_calls(program)["tpu_custom_call"] == 3
    assert collective_kinds(program) == set()
    assert choices() == ["attention: splash (tpu)"]


@pytest.mark.parametrize(
    ("chips", "chip", "kernel"),
    [
        pytest.param(tpus, "v5e:2x4", ("tpu_custom_call", 3), marks=needs_tpu_compiler),
        pytest.param(gpus, "h100", ("mosaic_gpu_v2", 1), marks=needs_gpu_compiler),
        pytest.param(gpus, "a100-80gb", ("__gpu$xla.gpu.triton", 3), marks=needs_gpu_compiler),
    ],
)
def test_saving_the_output_spares_a_second_forward_pass(
    chips: Callable[..., Any], chip: str, kernel: tuple[str, int]
) -> None:
    def program(policy: Any) -> Any:
        def loss(q: Any, k: Any, v: Any, positions: Any, segments: Any, _: Any) -> Any:
            positions_of = {"q_positions_BS": positions, "kv_positions_BT": positions}
            segment_ids = {"q_segment_ids_BS": segments, "kv_segment_ids_BT": segments}

            @functools.partial(jax.checkpoint, policy=policy)
            def layer(q: Any, k: Any, v: Any) -> Any:
                call = {"mask": Causal(), "aligned": True, **positions_of, **segment_ids}
                return attention(2 * q, 2 * k, 2 * v, **call)

            return jnp.sin(layer(q, k, v).astype(jnp.float32)).sum()

        placement = chips(chip, data=2, model=2)
        return compiled(jax.grad(loss, (0, 1, 2)), placement, *arrays_of())

    policies = jax.checkpoint_policies
    saved = program(policies.save_only_these_names("attention_output"))
    name, once = kernel
    assert custom_calls(saved)[name] == once
    assert custom_calls(program(policies.nothing_saveable))[name] == once + 1


@needs_tpu_compiler
def test_splash_needs_no_quadratic_memory() -> None:
    program = compiled(gradients_of(Causal()), tpus("v5p:2x2x1"), *arrays_of(1, 16384))
    memory = program.memory_analysis()
    assert memory.temp_size_in_bytes < 4 * memory.argument_size_in_bytes


@needs_gpu_compiler
@pytest.mark.parametrize("chip", ["a100-80gb", "h100"])
@pytest.mark.parametrize("mask", [Causal(), Full(), SlidingWindow(100)], ids=str)
def test_cudnn_on_gpus(chip: str, mask: Mask) -> None:
    clear_choices()
    program = compiled(gradients_of(mask), gpus(chip), *arrays_of(packed=False))
    kernels = custom_calls(program)
    assert kernels["__cudnn$fmhaSoftmax"] == kernels["__cudnn$fmhaSoftmaxBackward"] == 1
    assert choices() == ["attention: cudnn (gpu)"]


GPU_CASES: dict[str, tuple[Mask, dict[str, Any], dict[str, Any]]] = {
    "causal": (Causal(), {}, {}),
    "window, soft cap": (SlidingWindow(200), {"score_map": SoftCap(30.0)}, {}),
    "sinks": (Causal(), {}, {"sinks": True, "widths": (64, 64)}),
    "latent": (Causal(), {}, {"heads": (4, 4), "widths": (192, 128), "length": 640}),
    "wide": (Full(), {}, {"widths": (256, 256)}),
    "float32": (Full(), {}, {"dtype": "float32", "widths": (64, 64)}),
}


@needs_gpu_compiler
@pytest.mark.parametrize(
    ("chip", "case"),
    [
        *((chip, name) for chip in ("a100-80gb", "b200") for name in GPU_CASES),
        ("h100", "float32"),
        ("gb200", "causal"),
    ],
)
def test_triton_on_gpus(chip: str, case: str) -> None:
    clear_choices()
    mask, options, shapes = GPU_CASES[case]
    program = compiled(gradients_of(mask, **options), gpus(chip), *arrays_of(**shapes))
    assert custom_calls(program)["__gpu$xla.gpu.triton"] == 3, "forward, dq, and dk with dv"
    assert choices()[0].startswith("attention: triton (gpu; not cudnn, because")


@needs_gpu_compiler
@pytest.mark.parametrize(
    ("chip", "case"),
    [*(("h100", name) for name in GPU_CASES if name != "float32"), ("h200", "causal")],
)
def test_mosaic_on_hopper(chip: str, case: str) -> None:
    clear_choices()
    mask, options, shapes = GPU_CASES[case]
    program = compiled(gradients_of(mask, **options), gpus(chip), *arrays_of(**shapes))
    kernels = custom_calls(program)
    assert (kernels["mosaic_gpu_v2"], kernels["__gpu$xla.gpu.triton"]) == (1, 2), "dq; dk with dv"
    assert choices()[0].startswith("attention: mosaic (gpu; not cudnn, because")


@needs_gpu_compiler
@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize(
    ("mask", "options"),
    [
        (Causal(), {}),
        (Full(), {}),
        (SlidingWindow(70), {"score_map": SoftCap(2.0)}),
        (SlidingWindow(30), {"sinks": jnp.asarray([0.7, -1.5, 3.0, 0.0])}),
    ],
    ids=["causal", "full", "window, soft cap", "window, sinks"],
)
def test_mosaic_gets_the_right_arguments(
    mask: Mask, options: dict[str, Any], is_packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # tokamax's other way to compute the same call needs no GPU.
    monkeypatch.setattr(mosaic_module, "BACKEND", "xla")
    inputs = arrays(2, 256, 256, 4, 2, 48, "bfloat16", 32)
    options = dict(options)
    sinks = options.pop("sinks", None)
    call = aligned_call(mask, 2, 256, is_packed) | {"scale": 0.3} | options
    got = results("mosaic", inputs, call, sinks, platform="gpu")
    assert_close(got, results("reference", inputs, call, sinks), TOLERANCES["bfloat16"])


@needs_gpu_compiler
@pytest.mark.parametrize("packed", [True, False])
def test_gpu_kernels_run_on_each_device_without_communication(packed: bool) -> None:
    placement = gpus("h100", data=2, fsdp=2, model=2)
    program = compiled(gradients_of(Causal()), placement, *arrays_of(batch=8, packed=packed))
    assert custom_calls(program).total() >= 2
    assert collective_kinds(program) == set()
