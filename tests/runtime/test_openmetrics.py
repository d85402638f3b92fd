"""The file for Prometheus: its format, when it is written, and where."""

import re

import pytest

from dovetail.runtime import OpenMetrics
from dovetail.runtime.writers import openmetrics as module


def opened(run, **values):
    writer = OpenMetrics.Config(**values).build()
    writer.open(run, 0)
    return writer


def parsed(text):
    """Reads the format: a type, then a value, for each metric; at the end `# EOF`."""
    *lines, end = text.splitlines()
    assert end == "# EOF"
    values = {}
    for about, line in zip(lines[::2], lines[1::2], strict=True):
        name, run, value = re.fullmatch(
            r'([a-z_][a-z0-9_]*)\{run="((?:[^"\\]|\\.)*)"\} (\S+)', line
        ).groups()
        assert about == f"# TYPE {name} gauge"
        values[name] = (run, float(value.replace("Inf", "inf")))
    return values


def test_the_newest_numbers_are_written_as_gauges(tmp_path):
    run = tmp_path / 'a "run"'
    run.mkdir()
    writer = opened(run)
    writer.write(1, {"loss": 3.0, "sample": "text"})
    writer.write(2, {"loss": 2.5, "goodput": 0.9})
    writer.write(2, {"held_out/loss": float("inf"), "trigram/bits-per-byte": float("nan")})
    writer.close()
    values = parsed((run / "metrics.prom").read_text())
    assert {name: value for name, (_, value) in values.items() if value == value} == {
        "dovetail_step": 2.0,
        "dovetail_loss": 2.5,
        "dovetail_goodput": 0.9,
        "dovetail_held_out_loss": float("inf"),
    }
    assert "dovetail_trigram_bits_per_byte" in values
    assert {label for label, _ in values.values()} == {r"a \"run\""}
    assert [path.name for path in run.iterdir()] == ["metrics.prom"], "replaced atomically"


def test_the_file_is_replaced_no_more_often_than_asked(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    writer = opened(tmp_path, seconds_between_writes=15.0)

    def loss():
        return parsed((tmp_path / "metrics.prom").read_text())["dovetail_loss"][1]

    writer.write(1, {"loss": 1.0})
    now += 14
    writer.write(2, {"loss": 2.0})
    assert loss() == 1.0
    now += 1
    writer.write(3, {"loss": 3.0})
    assert loss() == 3.0
    writer.write(4, {"loss": 4.0})
    writer.close()
    assert loss() == 4.0


def test_the_folder_of_the_collector_gets_a_file_per_run(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        writer = opened(tmp_path / name, folder=str(tmp_path))
        writer.write(1, {"loss": 1.0})
        writer.close()
    assert {path.name for path in tmp_path.glob("*.prom")} == {
        "dovetail-one.prom",
        "dovetail-two.prom",
    }


def test_a_run_without_metrics_writes_nothing(tmp_path):
    opened(tmp_path).close()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_missing_is_an_error_that_the_loop_survives(tmp_path):
    writer = opened(tmp_path, folder=str(tmp_path / "missing"))
    with pytest.raises(OSError, match="No such file"):
        writer.write(1, {"loss": 1.0})
