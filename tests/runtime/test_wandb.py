"""Weights & Biases, offline: what stands in the files that its library writes."""

import json
import struct
import sys

import pytest
from wandb.proto import wandb_internal_pb2

from dovetail.config import ConfigError
from dovetail.runtime import WandB


def records(file):
    """Yields the records of a file of wandb: after a header of 7 bytes, a log as LevelDB writes it.

    A record is in one or more fragments, each with a checksum, its length and its type (1: whole,
    2, 3, 4: first, middle, last). No fragment crosses a block of 32 KiB.
    """
    content, offset, record = file.read_bytes(), 7, b""
    while offset + 7 <= len(content):
        if offset % 32768 > 32768 - 7:
            offset += -offset % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", content, offset)
        record += content[offset + 7 : offset + 7 + length]
        offset += 7 + length
        if kind in (1, 4):
            yield wandb_internal_pb2.Record.FromString(record)
            record = b""


def read_back(folder):
    """Returns the history, the config and the ids of all files in a run folder."""
    history, config, ids = [], {}, set()
    for record in (r for file in sorted(folder.rglob("*.wandb")) for r in records(file)):
        if record.HasField("history"):
            items = record.history.item
            history.append({i.key or i.nested_key[0]: json.loads(i.value_json) for i in items})
        if record.HasField("run"):
            ids.add(record.run.run_id)
            config |= {u.key: json.loads(u.value_json) for u in record.run.config.update}
    return history, config, ids


def test_metrics_texts_and_config_are_logged_and_a_restart_continues(tmp_path):
    folder = tmp_path / "my-run"
    folder.mkdir()
    (folder / "config.txt").write_text("dovetail.trainer:Trainer()\nlearner.peak = 0.003\n")
    writer = WandB.Config(mode="offline").build()
    writer.open(folder, 0)
    writer.write(1, {"loss": 5.5, "sample": "def main("})
    writer.write(2, {"loss": 5.25, "goodput": 0.5})
    writer.close()
    writer.open(folder, 2)
    writer.write(3, {"loss": 5.125})
    writer.close()
    history, config, ids = read_back(folder)
    assert [(entry["_step"], entry["loss"]) for entry in history] == [
        (1, 5.5),
        (2, 5.25),
        (3, 5.125),
    ]
    assert history[0]["sample"] == "def main("
    assert history[1]["goodput"] == 0.5
    assert config["learner.peak"] == "0.003"
    assert ids == {(folder / "wandb-id").read_text().strip()}


def test_a_missing_library_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"not installed. Install the extra: pip install"):
        WandB.Config().build().open(tmp_path, 0)


def test_an_unknown_mode_is_refused():
    with pytest.raises(ConfigError, match="expected online, offline or disabled, got 'onlin'"):
        WandB.Config(mode="onlin").build()
