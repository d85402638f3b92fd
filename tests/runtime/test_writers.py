"""Writers: what they keep, and what they drop on resume."""

import io
import json
import re

import pytest

from dovetail.runtime import JsonLines, TensorBoard
from dovetail.runtime.console import Console, loss_chart


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_json_lines_are_cut_to_the_restored_step(tmp_path):
    writer = JsonLines.Config().build()
    writer.open(tmp_path, 0)
    for step in range(1, 6):
        writer.write(step, {"loss": float(step)})
    writer.close()
    again = JsonLines.Config().build()
    again.open(tmp_path, 3)
    again.write(4, {"loss": 40.0})
    again.close()
    entries = read(tmp_path / "metrics.jsonl")
    assert [(entry["step"], entry["loss"]) for entry in entries] == [
        (1, 1),
        (2, 2),
        (3, 3),
        (4, 40),
    ]


def test_a_line_cut_off_by_a_crash_is_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    writer = JsonLines.Config().build()
    writer.open(tmp_path, 2)
    writer.write(2, {"loss": 1.0})
    writer.close()
    assert [entry["loss"] for entry in read(path)] == [2.0, 1.0]


def test_a_number_that_json_lacks_becomes_null(tmp_path):
    writer = JsonLines.Config().build()
    writer.open(tmp_path, 0)
    writer.write(1, {"loss": float("nan")})
    writer.close()
    assert read(tmp_path / "metrics.jsonl") == [{"step": 1, "loss": None}]


def test_tensorboard_writes_events_that_can_be_read_back(tmp_path):
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import RecordWriter  # noqa: F401  # the format's own writer exists

    writer = TensorBoard.Config().build()
    writer.open(tmp_path, 0)
    writer.write(3, {"loss": 2.5, "sample": "def f(): pass"})
    writer.close()
    (file,) = (tmp_path / "tensorboard").iterdir()
    data, tags = file.read_bytes(), []
    while data:  # a record is its length (8 bytes), a checksum (4), the event, and a checksum (4)
        length = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12 : 12 + length])
        tags += [(value.tag, event.step) for value in event.summary.value]
        data = data[16 + length :]
    assert ("loss", 3) in tags
    assert any(tag.startswith("sample") for tag, _ in tags)


def test_plain_lines_show_the_metrics_of_a_step(capsys):
    console = Console.Config(seconds_between_lines=0.0).build()
    console.open(None, 0)
    console.write(
        5, {"loss": 3.25, "bits_per_byte": 2.5, "steps": 10, "mfu": 0.5, "seconds_left": 61.0}
    )
    console.write(5, {"held_out/loss": 3.5})
    console.close()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "step 5/10  loss 3.250  bits/byte 2.500  MFU 50.0%  left 1 min 01 s"
    assert lines[1] == "step 5  held_out/loss 3.5"


class Terminal(io.StringIO):
    """Takes what is shown, and says that it is a terminal."""

    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("width", "shown", "dropped"),
    [
        (120, ["memory 1.23 GB", "MFU 45.6%", "left 1 min 20 s"], []),
        (80, ["loss 2.346", "tokens/s 12,345", "left 1 min 20 s"], ["memory", "MFU"]),
        (50, ["step 239/240", "loss 2.346", "left 1 min 20 s"], ["bits/byte", "tokens/s"]),
        (12, ["step 239/2"], ["left"]),
    ],
)
def test_the_live_line_fits_the_terminal(width, shown, dropped, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    console = Console.Config().build()
    console.open(None, 0)
    metrics = {"steps": 240, "loss": 2.3456, "bits_per_byte": 1.2345, "tokens_per_second": 12345.0}
    console.write(239, metrics | {"mfu": 0.456, "memory_gb": 1.234, "seconds_left": 80.0})
    console.close()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    lines = [line for line in re.split(r"[\r\n]+", plain) if line.strip()]
    assert max(map(len, lines)) <= width
    assert all(piece in lines[0] for piece in shown)
    assert not any(piece in plain for piece in dropped)


def test_the_chart_falls_where_the_loss_falls():
    chart = loss_chart([(step, 10.0 - step / 10) for step in range(1, 101)], width=20, height=4)
    rows = chart.splitlines()
    assert "9.7" in rows[0]
    assert rows[0].count("█") < rows[-2].count("█")
    assert rows[-1].split() == ["1", "step", "100"]
