"""Step metrics: their names, and the peak that MFU refers to."""

import functools
from types import SimpleNamespace

import jax
import pytest

from dovetail.config import apply_modifier
from dovetail.experiments import find_experiment
from dovetail.hardware import chip_named
from dovetail.learner import StepReport
from dovetail.trainer import step_metrics
from dovetail.trainer.step_metrics import StepTimer, report_metrics


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["loss/next_token"], set()),  # the loss itself says it all
        (
            ["loss/next_token", "decoder/stack/feed_forward/losses/balance"],
            {"loss/next_token", "loss/balance"},
        ),
        (["a/balance", "b/balance"], {"loss/a/balance", "loss/b/balance"}),
    ],
)
def test_losses_are_named_by_the_end_of_their_path(paths, names):
    report = StepReport(
        loss=1.0,
        losses=dict.fromkeys(paths, 1.0),
        weight=1.0,
        gradient_norm=1.0,
        learning_rate=1.0,
        finite=True,
        non_finite_parameter=-1,
        summaries={},
    )
    assert {name for name in report_metrics(report) if name.startswith("loss/")} == names


@pytest.mark.parametrize(
    ("name", "modifiers", "precision", "peak"),
    [
        ("tiny-lm", ("fp32",), "float32", 494.7e12),
        ("tiny-lm", ("bf16",), "bfloat16", 989.4e12),
        ("tiny-lm", ("bf16", "fp8"), "float8", 1978.9e12),
        ("tiny-lm", ("bf16", "int8"), "int8", 1978.9e12),
        # Most of it is in experts, whose products are those of the wider type.
        ("mixtral-8x7b", ("bf16", "fp8"), "bfloat16", 989.4e12),
    ],
)
def test_mfu_is_of_the_peak_at_which_most_products_run(
    name, modifiers, precision, peak, monkeypatch
):
    config = functools.reduce(apply_modifier, modifiers, find_experiment(name).tiny())
    program = config.build().program(tuple(jax.devices()[:2]))
    monkeypatch.setattr(step_metrics, "_chip", lambda device: chip_named("nvidia-h100"))
    now = iter([10.0, 12.5])
    # Threads of other tests use the clock, too.
    monkeypatch.setattr(step_metrics, "time", SimpleNamespace(monotonic=lambda: next(now)))
    timer = StepTimer.of(program)
    timer.start(0)
    timer.tick(1)
    assert timer.about.endswith(f"(nvidia-h100 in {precision})")
    assert timer.metrics(1, 2)["mfu"] == pytest.approx(program.step_flops() / 2.5 / (2 * peak))


def test_speed_is_smoothed_and_the_last_step_is_not(monkeypatch):
    now = iter([0.0, 8.0, 9.0, 10.0])
    # Threads of other tests use the clock, too.
    monkeypatch.setattr(step_metrics, "time", SimpleNamespace(monotonic=lambda: next(now)))
    timer = StepTimer({"tokens": 100}, flops_per_step=1, peak_flops=None)
    timer.start(0)
    for step in (1, 2, 3):
        timer.tick(step)
    shown = timer.metrics(3, 4)
    assert shown["step_seconds"] == 1.0, "what a plan is verified by"
    assert 100 / 8 < shown["tokens_per_second"] < 100, "what people watch"


@pytest.mark.parametrize(
    ("chip", "modifier", "gains"),
    [
        ("tpu-v5e", "fp8", False),
        ("tpu-v5e", "int8", True),
        ("nvidia-a100-80gb", "fp8", False),
        ("tpu-7x", "int8", False),
        ("tpu-7x", "fp8", True),
    ],
)
def test_a_run_says_where_rounding_gains_no_speed(chip, modifier, gains, monkeypatch):
    config = functools.reduce(apply_modifier, ("bf16", modifier), find_experiment("tiny-lm").tiny())
    program = config.build().program(tuple(jax.devices()[:2]))
    monkeypatch.setattr(step_metrics, "_chip", lambda device: chip_named(chip))
    assert StepTimer.of(program).about.endswith("gains no speed on it") is not gains
