"""Metrics of a step: the numbers of its report, step time, throughput and MFU."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax

from dovetail.hardware import (
    QUANTIZED_PRECISIONS,
    Chip,
    chip_for_device,
    precision_of,
)
from dovetail.learner import StepReport
from dovetail.module import batch_items
from dovetail.runtime import PeakGrowth, measured_cpu, peak_memory_bytes

_SMOOTHING = 0.9


def report_metrics(report: StepReport) -> dict[str, float | int | str]:
    """Returns loss, learning rate, gradient norm and summaries of one step."""
    metrics: dict[str, float | int | str] = {
        "loss": float(report.loss),
        "learning_rate": float(report.learning_rate),
        "gradient_norm": float(report.gradient_norm),
    }
    if len(report.losses) > 1:
        losses = short_names(report.losses)
        metrics |= {f"loss/{name}": float(value) for name, value in losses.items()}
    for name, summary in short_names(report.summaries).items():
        metrics[name] = float(summary.value())
    return metrics


def short_names(values: dict[str, Any]) -> dict[str, Any]:
    """Keys values by the last part of their path, or by the whole path if that is ambiguous."""
    last = [path.rpartition("/")[2] for path in values]
    return {
        name if last.count(name) == 1 else path: value
        for (path, value), name in zip(values.items(), last, strict=True)
    }


class StepTimer:
    """Measures step time from when results are ready, not from dispatch."""

    def __init__(
        self,
        items_per_step: Mapping[str, int],
        flops_per_step: int,
        peak_flops: float | None,
        about: str = "",
    ) -> None:
        """Takes the items (such as tokens) and FLOPs of a step, and a line on MFU's peak."""
        self._items, self._flops, self._peak = items_per_step, flops_per_step, peak_flops
        self.about = about
        self._last = 0.0
        self._seconds: float | None = None
        self._latest = 0.0
        self._paused = 0.0
        self._growth: PeakGrowth | None = None
        self._grown: int | None = None

    @classmethod
    def of(cls, program: Any) -> StepTimer:
        """Makes the timer of a program on its devices."""
        devices = program.placement.device_mesh.devices.flatten()
        peak, about = _peak_flops(devices, precision_of(program.precision()))
        return cls(batch_items(program.batch_spec), program.step_flops(), peak, about)

    def start(self, step: int) -> None:
        """Starts before the first step."""
        self._growth = PeakGrowth()
        self._last = time.monotonic()

    def tick(self, step: int) -> None:
        """Records that a step's result is ready."""
        now = time.monotonic()
        seconds = max(now - self._last - self._paused, 1e-9)
        self._last, self._latest, self._paused = now, seconds, 0.0
        if self._seconds is None:
            self._seconds = seconds
        else:
            self._seconds = _SMOOTHING * self._seconds + (1 - _SMOOTHING) * seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Excludes the block (evaluation, saving) from step time and step memory."""
        self._record_growth()
        self._growth = None
        before = time.monotonic()
        try:
            yield
        finally:
            self._paused += time.monotonic() - before

    def metrics(self, step: int, steps: int) -> dict[str, float | int | str]:
        """Returns the last step time, smoothed throughput, MFU, time left and memory."""
        seconds = self._seconds or 1e-9
        metrics: dict[str, float | int | str] = {
            "steps": steps,
            "step_seconds": self._latest,
            **{f"{kind}_per_second": count / seconds for kind, count in self._items.items()},
            "memory_gb": peak_memory_bytes() / 1e9,
            "seconds_left": (steps - step) * seconds,
        }
        self._record_growth()
        if self._grown is not None:
            metrics["step_memory_gb"] = self._grown / 1e9
        if self._peak:
            # MFU is computed from model FLOPs: recomputation (remat) does not count.
            metrics["mfu"] = self._flops / seconds / self._peak
        return metrics

    def _record_growth(self) -> None:
        """Records the memory that steps use beyond what was used before the first."""
        if self._growth is not None:
            self._grown = self._growth.bytes()


def _peak_flops(devices: Any, precision: str) -> tuple[float | None, str]:
    """Returns the peak FLOP/s of all devices at a precision, and a line that describes it.

    No MFU is better than one against the peak of another chip or precision.
    """
    chip = _chip(devices[0])
    if chip is None:
        return None, f"no MFU: the catalogue has no chip {devices[0].device_kind!r}"
    if precision not in chip.peak_flops:
        return None, f"no MFU: the catalogue has no rate of {chip.name} in {precision}"
    each = chip.flops_per_device(precision)
    peak = f"{len(devices)} x {each / 1e12:.4g} TFLOP/s ({chip.name} in {precision})"
    if precision in QUANTIZED_PRECISIONS and not chip.is_faster_in(precision):
        peak += f": rounding to {precision} gains no speed on it"
    return each * len(devices), f"MFU refers to a peak of {peak}"


def _chip(device: jax.Device) -> Chip | None:
    return measured_cpu() if device.platform == "cpu" else chip_for_device(device.device_kind)
