"""tiny-lm is worth watching: what the README says of it holds, as a newcomer runs it."""

import json
import os
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_tiny_lm_beats_the_trigram_and_writes_python(tmp_path):
    command = (
        "import sys; from dovetail.cli import main; sys.exit(main(['train', 'tiny-lm', '--json']))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "NPROC"}
    done = subprocess.run(
        [sys.executable, "-c", command],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
    )
    metrics = json.loads(done.stdout)["metrics"]
    assert metrics["held_out/bits_per_byte"] < metrics["trigram/bits_per_byte"] - 0.5
    assert metrics["samples/python_lines"] >= 0.7
