"""Progress appears while JAX is still being imported: each command says at once what it does."""

import os
import pty
import subprocess
import sys

import pytest

# The import of JAX takes until a line arrives on standard input, as if the disk were slow.
SLOW_IMPORT = """
import os, select, sys
from importlib.machinery import PathFinder
from dovetail.cli import main

class SlowImport:
    def find_spec(self, name, path=None, target=None):
        if name == "jax":
            spec = PathFinder.find_spec(name, path)
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (wait(), execute(module))
            return spec

def wait():
    if not select.select([sys.stdin], [], [], 30)[0]:
        os._exit(3)

sys.meta_path.insert(0, SlowImport())
raise SystemExit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
@pytest.mark.parametrize(
    ("command", "progress", "result"),
    [
        ("doctor", "measuring this machine", "everything that training needs is installed"),
        ("config sharding tiny-lm --target cpu-8", "tiny-lm: loading", "in all"),
        ("plan tiny-lm --target tpu-v5p-8 --analytic", "tiny-lm: loading", "fits"),
        ("plan tiny-lm --targets tpu-v5p-8", "planning: loading", "tpu-v5p-8"),
        ("config params tiny-lm", "tiny-lm: loading", "total"),
        ("config diff tiny-lm --steps 5", "tiny-lm: loading", "steps"),
        ("import hf . --to run", "import hf: loading", None),
        ("export hf run --to out", "export hf: loading", None),
    ],
)
def test_progress_comes_before_the_slow_imports(command, progress, result, terminal, tmp_path):
    """`result` is a part of the output; None is a command that is refused afterwards."""
    read, write = pty.openpty() if terminal else os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_IMPORT, *command.split()],
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=write,
        text=True,
    )
    os.close(write)
    shown = ""
    while progress not in shown:
        try:
            piece = os.read(read, 4096)
        except OSError:  # how the end of a terminal is read
            piece = b""
        assert piece, f"JAX was imported before any progress was shown: {shown!r}"
        shown += piece.decode(errors="replace")
    drained = subprocess.Popen(["cat"], stdin=read, stdout=subprocess.DEVNULL)
    out, _ = process.communicate("\n")
    os.close(read)
    drained.wait()
    assert process.returncode == (2 if result is None else 0)
    assert (result or "") in out
