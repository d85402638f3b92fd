"""From a step's report to figures that people read, and the clock that knows the speed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

from dovetail.hardware import (
    MFU_FORMULA,
    SMALL_PRECISIONS,
    Chip,
    chip_for_device,
    measured_cpu,
    precision_of,
)
from dovetail.learner import StepReport
from dovetail.runtime import PeakGrowth, peak_memory_bytes

_SMOOTHING = 0.9


def report_figures(report: StepReport) -> dict[str, float | int | str]:
    """Returns the figures of one step."""
    figures: dict[str, float | int | str] = {
        "loss": float(report.loss),
        "learning_rate": float(report.learning_rate),
        "gradient_norm": float(report.gradient_norm),
    }
    if len(report.losses) > 1:
        losses = shortened(report.losses)
        figures |= {f"loss/{name}": float(value) for name, value in losses.items()}
    for name, summary in shortened(report.summaries).items():
        figures[name] = float(summary.value())
    return figures


def shortened(values: dict[str, Any]) -> dict[str, Any]:
    """Names values by the last piece of their path; by the whole path where that is not unique."""
    last = [path.rpartition("/")[2] for path in values]
    return {
        name if last.count(name) == 1 else path: value
        for (path, value), name in zip(values.items(), last, strict=True)
    }


class StepClock:
    """Measures steps from the moments when their results were there, never from dispatch."""

    def __init__(
        self, tokens_per_step: int, flops_per_step: int, peak_flops: float | None, about: str = ""
    ) -> None:
        """Takes what a step is worth, and a line on what its MFU is measured against."""
        self._tokens, self._flops, self._peak = tokens_per_step, flops_per_step, peak_flops
        self.about = about
        self._last = 0.0
        self._seconds: float | None = None
        self._latest = 0.0
        self._paused = 0.0
        self._growth: PeakGrowth | None = None
        self._grown: int | None = None

    @classmethod
    def of(cls, program: Any) -> StepClock:
        """Makes the clock of a program on its own devices."""
        devices = program.placement.device_mesh.devices.flatten()
        batch, sequence = program.batch_spec.tokens.shape
        peak, about = _peak_flops(devices, precision_of(program.precision()))
        return cls(batch * sequence, program.step_flops(), peak, about)

    def start(self, step: int) -> None:
        """Starts before the first step."""
        self._growth = PeakGrowth()
        self._last = time.monotonic()

    def tick(self, step: int) -> None:
        """Notes that a step's result is there."""
        now = time.monotonic()
        seconds = max(now - self._last - self._paused, 1e-9)
        self._last, self._latest, self._paused = now, seconds, 0.0
        if self._seconds is None:
            self._seconds = seconds
        else:
            self._seconds = _SMOOTHING * self._seconds + (1 - _SMOOTHING) * seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves evaluation and saving out of the time of steps, and out of their memory."""
        self._note_growth()
        self._growth = None
        before = time.monotonic()
        try:
            yield
        finally:
            self._paused += time.monotonic() - before

    def figures(self, step: int, steps: int) -> dict[str, float | int | str]:
        """Returns the last step's time; smoothed speed, share of the peak, time left; memory."""
        seconds = self._seconds or 1e-9
        figures: dict[str, float | int | str] = {
            "steps": steps,
            "step_seconds": self._latest,
            "tokens_per_second": self._tokens / seconds,
            "memory_gb": peak_memory_bytes() / 1e9,
            "seconds_left": (steps - step) * seconds,
        }
        self._note_growth()
        if self._grown is not None:
            figures["step_memory_gb"] = self._grown / 1e9
        if self._peak:
            figures["mfu"] = self._flops / seconds / self._peak
        return figures

    def _note_growth(self) -> None:
        """Notes what steps have taken beside what was there before the first."""
        if self._growth is not None:
            self._grown = self._growth.bytes()


def _peak_flops(devices: Any, precision: str) -> tuple[float | None, str]:
    """Returns the peak of all devices at a precision, and a line that tells of it.

    No MFU is better than one against another chip's peak, or another precision's.
    """
    chip = _chip(devices[0])
    if chip is None:
        return None, f"no MFU: the catalogue has no chip {devices[0].device_kind!r}"
    if precision not in chip.peak_flops:
        return None, f"no MFU: the catalogue has no rate of {chip.name} in {precision}"
    each = chip.flops_per_device(precision)
    peak = f"{len(devices)} x {each / 1e12:.4g} TFLOP/s ({chip.name} in {precision})"
    if precision in SMALL_PRECISIONS and not chip.gains_by(precision):
        peak += f": rounding to {precision} gains no speed on it"
    return each * len(devices), f"{MFU_FORMULA}; the peak here is {peak}"


def _chip(device: jax.Device) -> Chip | None:
    return measured_cpu() if device.platform == "cpu" else chip_for_device(device.device_kind)
