"""Runs a module in two real processes that know each other's address."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

_PATIENCE = 500


def run_pair(module: str, folder: Path, *arguments: object) -> list[dict[str, Any]]:
    """Runs `python -m MODULE ADDRESS INDEX FOLDER ...` twice.

    Returns the lines of JSON that each process printed, as one dictionary. What they log is in
    `0.txt` and `1.txt` in the folder.
    """
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        address = f"localhost:{listener.getsockname()[1]}"
    pair = []
    for index in (0, 1):
        words = [address, index, folder, *arguments]
        with (folder / f"{index}.txt").open("w") as log:
            pair.append(
                subprocess.Popen(
                    [sys.executable, "-m", module, *map(str, words)],
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
            )
    try:
        outputs = [process.communicate(timeout=_PATIENCE)[0] for process in pair]
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
