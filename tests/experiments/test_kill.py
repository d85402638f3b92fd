"""Kill -9 at a random step, start again: the losses are those of an unbroken run, bit for bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

COMMAND = [
    sys.executable,
    "-c",
    "import sys; from dovetail.cli import main; sys.exit(main())",
    *["train", "tiny-lm", "--steps", "40", "checkpointer.every=5", "evaluators={}"],
    *["model.width=64", "model.decoder.stack.num_layers=2"],
    *["input.sequence_length=64", "model.decoder.stack.layer.attention.num_heads=2"],
]


def losses(folder):
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    # While the run goes on, its last line may be half there.
    whole = [line for line in lines if line.endswith("}")]
    return {entry["step"]: entry["loss"] for entry in map(json.loads, whole)}


@pytest.mark.slow
def test_a_killed_run_continues_bit_for_bit(tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    run = lambda name: [*COMMAND, "--run", str(tmp_path / name)]  # noqa: E731
    subprocess.run(run("whole"), env=environment, check=True, capture_output=True)
    stop_after = random.randint(6, 35)
    process = subprocess.Popen(run("killed"), env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    try:
        while max(losses(tmp_path / "killed"), default=0) < stop_after:
            assert process.poll() is None, "the run ended before it could be killed"
            assert time.monotonic() < deadline, "the run did not come that far"
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    again = subprocess.run(
        run("killed"), env=environment, capture_output=True, text=True, check=False
    )
    assert again.returncode == 0, again.stderr
    assert "resumed from step" in again.stderr
    unbroken = losses(tmp_path / "whole")
    assert sorted(unbroken) == list(range(1, 41))
    assert losses(tmp_path / "killed") == unbroken, f"killed after {stop_after}"
