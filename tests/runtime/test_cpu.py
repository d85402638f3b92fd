"""The measured CPU: plausible rates, and a cache that ignores stale or damaged entries."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import pytest

from dovetail.hardware import PRECISIONS
from dovetail.runtime import cpu, measured_cpu

SMALL = {"float32": 2e9, "bfloat16": 1e9, "memory_bandwidth": 1e9}
LARGE = {"float32": 3e9, "bfloat16": 5e8, "memory_bandwidth": 4e9}


class Measurements:
    """Replaces the measurement with given results, and counts calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *results: dict[str, float]) -> None:
        self.results, self.count, self.busy = results, 0, False
        monkeypatch.setattr(cpu, "_measure", self.measure)
        monkeypatch.setattr(cpu, "_is_busy", lambda: self.busy)

    def measure(self) -> dict[str, float]:
        """Returns the next result."""
        self.count += 1
        return self.results[self.count - 1]


def test_this_host_can_be_measured(tmp_path: Path) -> None:
    chip = measured_cpu(tmp_path)
    assert (chip.name, chip.platform) == ("cpu", "cpu")
    assert tuple(chip.peak_flops) == PRECISIONS
    # From a busy share of a small machine to a large server.
    assert all(1e8 < rate < 1e15 for rate in chip.peak_flops.values())
    assert 1e8 < chip.memory_bandwidth < 1e13
    assert chip.memory_bytes > 1e8
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


def test_the_devices_of_a_process_share_the_chip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Measurements(monkeypatch, SMALL)
    chip = measured_cpu(tmp_path)
    assert chip.devices_per_chip == jax.local_device_count()
    assert chip.flops_per_device("float32") * jax.device_count() == pytest.approx(2e9)


def test_a_measurement_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measurements = Measurements(monkeypatch, SMALL)
    first = measured_cpu(tmp_path)
    assert measured_cpu(tmp_path) == first
    assert first.peak_flops["float32"] == 2e9
    assert measurements.count == 1


def test_another_cpu_or_jax_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measurements = Measurements(monkeypatch, SMALL, LARGE, LARGE)
    measured_cpu(tmp_path)
    monkeypatch.setattr(cpu, "cpu_model", lambda: "Another CPU")
    assert measured_cpu(tmp_path).peak_flops["float32"] == 3e9
    monkeypatch.setattr(cpu, "version", lambda _: "99.0")
    measured_cpu(tmp_path)
    assert measurements.count == 3


def test_a_busy_host_is_measured_again_and_the_best_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measurements = Measurements(monkeypatch, SMALL, LARGE)
    measurements.busy = True
    measured_cpu(tmp_path)
    measurements.busy = False
    chip = measured_cpu(tmp_path)
    assert (chip.peak_flops["float32"], chip.peak_flops["bfloat16"]) == (3e9, 1e9)
    assert measured_cpu(tmp_path) == chip
    assert measurements.count == 2


@pytest.mark.parametrize(
    "contents", ["", "not json", "[]", "{}", '{"float32": "fast"}', "NEGATIVE", "OTHER"]
)
def test_a_damaged_cache_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, contents: str
) -> None:
    measurements = Measurements(monkeypatch, SMALL, LARGE)
    measured_cpu(tmp_path)
    (path,) = tmp_path.iterdir()
    good = json.loads(path.read_text())
    damaged = {
        "NEGATIVE": json.dumps({**good, "float32": -1.0}),
        "OTHER": json.dumps({**good, "cores": 9999}),
    }
    path.write_text(damaged.get(contents, contents))
    assert measured_cpu(tmp_path).peak_flops["float32"] == 3e9
    assert measurements.count == 2
    assert json.loads(path.read_text())["float32"] == 3e9


def test_a_read_only_cache_is_not_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Measurements(monkeypatch, SMALL)
    (tmp_path / "file").write_text("in the way")
    assert measured_cpu(tmp_path / "file" / "cache").peak_flops["float32"] == 2e9


def test_the_users_cache_folder_is_the_default(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Measurements(monkeypatch, SMALL)
    assert measured_cpu().peak_flops["float32"] == 2e9
    assert [path.parent for path in cache_folder.rglob("*.json")] == [cache_folder / "dovetail"]
