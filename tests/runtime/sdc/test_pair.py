"""Two real processes repeat their steps on each other's devices, over gloo."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 500


def run_pair(folder: Path, devices: int) -> list[dict[str, Any]]:
    """Returns what each process said."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        address = f"localhost:{listener.getsockname()[1]}"
    command = [sys.executable, "-m", "tests.runtime.sdc.pair", address]
    pair = []
    for index in (0, 1):
        arguments = [*command, str(index), str(folder), str(devices)]
        with (folder / f"{index}.txt").open("w") as log:
            pair.append(subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=log, text=True))
    try:
        outputs = [process.communicate(timeout=PATIENCE)[0] for process in pair]
    finally:
        for process in pair:
            process.kill()
    for index, process in enumerate(pair):
        assert process.returncode == 0, (folder / f"{index}.txt").read_text()[-3000:]
    said = []
    for output in outputs:
        entries = (json.loads(line) for line in output.splitlines() if line.startswith("{"))
        said.append({name: value for entry in entries for name, value in entry.items()})
    return said


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_a_fault_of_either_process_is_named_by_both(tmp_path: Path, devices: int) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number in range(20):
        lines = [f"def function_{number}_{line}(x):\n    return x + {line}\n" for line in range(12)]
        (corpus / f"{number}.txt").write_text("\n".join(lines))
    for said in run_pair(tmp_path, devices):
        assert said["healthy"] == 20, "no false alarm in 20 checks"
        for kind in ("faulty", "spread"):
            message = said[kind]
            assert message.startswith("Step 1 gave two results from the same state and batch")
            assert "(process 1 on " in message
            if devices == 2:
                assert "cpu:2049 (process 1 on " in message or "cpu:3 (process 1 on " in message
                assert message.count("(process ") == 1, "only the faulty device is named"
            else:
                assert message.count("(process ") == 2, "two devices cannot be told apart"
