"""Training in a Jupyter kernel: progress that reads well, the stop button, and a restart.

The cells run in a kernel of their own, and the tests see what a notebook would show.
"""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jupyter_client import BlockingKernelClient, KernelManager

from tests.run.test_run import CHANGES

pytestmark = pytest.mark.slow

PATIENCE = 300  # seconds; a busy machine is slow to compile
STEPS = 1500
STOP_NOTICE = "finishing this step, then saving; Ctrl-C again exits at once"

# The first import of JAX takes a while, as on a slow disk.
SETUP = f"""
import gc, signal, sys, threading, time
from importlib.machinery import PathFinder

class SlowImport:
    def find_spec(self, name, path=None, target=None):
        if name == "jax":
            sys.meta_path.remove(self)
            time.sleep(2)

sys.meta_path.insert(0, SlowImport())
numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
handlers = [signal.getsignal(number) for number in numbers]

import dovetail
changes = {(*CHANGES, "evaluators={}", "checkpointer.every=100")}
experiment = dovetail.experiment("tiny-lm").override(*changes)
"""


@dataclass
class Cell:
    """What a notebook shows below a cell."""

    printed: str = ""
    value: Any = None
    error: tuple[str, str] | None = None

    @property
    def lines(self) -> list[str]:
        return self.printed.splitlines()


class Notebook:
    """Runs cells in a kernel."""

    def __init__(self, manager: KernelManager) -> None:
        self.manager = manager
        self.connect()

    def connect(self) -> None:
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(PATIENCE)

    def run(self, code: str, *when: tuple[str, Callable[[], None]]) -> Cell:
        """Runs a cell. Each action happens once, when a text is printed after the one before."""
        sent, cell, waiting, seen = self.client.execute(code), Cell(), list(when), 0
        while True:
            message = self.client.get_iopub_msg(PATIENCE)
            if message["parent_header"].get("msg_id") != sent:
                continue  # a thread of an earlier cell
            content = message["content"]
            if content.get("execution_state") == "idle":
                assert not waiting, f"never printed: {waiting[0][0]!r}: {cell.printed}"
                return cell
            if message["msg_type"] == "stream":
                cell.printed += content["text"]
            elif message["msg_type"] == "execute_result":
                cell.value = ast.literal_eval(content["data"]["text/plain"])
            elif message["msg_type"] == "error":
                cell.error = (content["ename"], content["evalue"])
            if waiting and waiting[0][0] in cell.printed[seen:]:
                seen = len(cell.printed)
                waiting.pop(0)[1]()

    def show(self, expression: str) -> Any:
        cell = self.run(expression)
        assert cell.error is None, cell.error
        return cell.value

    def stop(self) -> None:
        """The stop button."""
        self.manager.interrupt_kernel()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notebook")


@pytest.fixture(scope="module")
def notebook(folder: Path) -> Iterator[Notebook]:
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(folder / "jupyter"),
    }
    # With it, the kernel would not show what is written to file descriptors, as the notice is.
    environment.pop("PYTEST_CURRENT_TEST", None)
    manager = KernelManager(kernel_name="python3", connection_file=str(folder / "kernel.json"))
    manager.kernel_spec.argv[0] = sys.executable
    manager.shutdown_wait_time = PATIENCE  # after which a kernel is killed
    manager.start_kernel(env=environment, cwd=folder)
    try:
        notebook = Notebook(manager)
        assert notebook.run(SETUP).error is None
        yield notebook
    finally:
        manager.shutdown_kernel(now=True)


@pytest.fixture
def unchanged(notebook: Notebook) -> Iterator[None]:
    """Checks that a test leaves signal handlers, threads and memory of the kernel as they were."""
    threads = notebook.show("threading.active_count()")
    yield
    handlers = "[signal.getsignal(number) for number in numbers] == handlers"
    assert notebook.show(handlers)
    assert notebook.show("threading.active_count()") <= threads
    arrays = "import jax; gc.collect(); sum(array.nbytes for array in jax.live_arrays())"
    assert notebook.show(arrays) < 1000, "the training state is still in memory"
    slept = notebook.run("print('now'); time.sleep(600)", ("now", notebook.stop))
    assert slept.error == ("KeyboardInterrupt", "")


def saved_steps(run: Path) -> list[int]:
    return sorted(int(each.name.partition("-")[0]) for each in (run / "checkpoints").glob("*-*"))


def reads_well(cell: Cell) -> bool:
    """Whether the output is lines for people: no control characters, and not too many."""
    assert all(line.isprintable() for line in cell.lines), cell.printed
    assert len(cell.lines) < 50, cell.printed
    assert cell.printed.endswith("\n")
    return True


def test_a_cell_trains_and_shows_its_progress(notebook: Notebook) -> None:
    cell = notebook.run("run = experiment.train(steps=5, folder='runs/first')")
    assert cell.error is None
    assert reads_well(cell)
    assert cell.lines[0] == "tiny-lm: loading", "before the slow import"
    assert "tiny-lm: training tiny-lm in runs/first" in cell.lines
    assert cell.lines[-1].startswith("step 5/5  loss ")
    assert notebook.show("run.step, round(run.metrics()[-1]['loss'])") == (5, 6)
    assert notebook.show("str(run), run.path.name") == ("Run('runs/first')", "first")
    assert isinstance(notebook.show("run.generate('def main(', max_new_tokens=4).text"), str)


@pytest.mark.usefixtures("unchanged")
def test_the_stop_button_saves_and_the_next_cell_continues(
    notebook: Notebook, folder: Path
) -> None:
    train = f"run = experiment.train(steps={STEPS}, folder='runs/stopped')"
    stopped = notebook.run(train, (f"/{STEPS}  loss", notebook.stop))
    assert reads_well(stopped)
    assert stopped.lines[-1] == STOP_NOTICE
    (step,) = saved_steps(folder / "runs" / "stopped")[-1:]
    assert 0 < step < STEPS
    saved = f"stopped by SIGINT after step {step}; it is saved in runs/stopped"
    assert stopped.error == ("Interrupted", f"{saved}, and the same call continues")
    assert notebook.show(f"dovetail.load('runs/stopped').step == {step}")

    continued = notebook.run(train)
    assert continued.error is None
    assert reads_well(continued)
    assert f"tiny-lm: resumed from step {step}" in continued.lines
    assert continued.lines[-1].startswith(f"step {STEPS}/{STEPS}  loss ")

    whole = f"whole = experiment.train(steps={STEPS}, folder='runs/whole', progress=False)"
    assert notebook.run(whole) == Cell()
    assert notebook.show("run.step == whole.step and run.losses() == whole.losses()")
    same = "all((run.params[path] == value).all() for path, value in whole.params.items())"
    assert notebook.show(f"bool({same})")
    notebook.run("del run, whole")


@pytest.mark.usefixtures("unchanged")
def test_a_second_stop_ends_the_cell_at_once(notebook: Notebook, folder: Path) -> None:
    """The disk does not answer, so the save that the first one asks for takes for ever."""
    notebook.run(
        "from dovetail.runtime import Checkpointer\n"
        "save_last = Checkpointer.save_last\n"
        "Checkpointer.save_last = lambda self, step, state: time.sleep(3600)"
    )
    train = f"run = experiment.train(steps={STEPS}, folder='runs/twice')"
    stopped = notebook.run(train, (f"/{STEPS}  loss", notebook.stop), (STOP_NOTICE, notebook.stop))
    notebook.run("Checkpointer.save_last = save_last")
    assert stopped.error == ("KeyboardInterrupt", "")
    life = json.loads((folder / "runs" / "twice" / "lives" / "000001.json").read_text())
    assert life["ended"] == "KeyboardInterrupt", "that is no crash after which a state is suspect"
    continued = notebook.run(train, (f"/{STEPS}  loss", notebook.stop))
    assert (continued.error or ("none",))[0] == "Interrupted"
    lives = len(list((folder / "runs" / "twice" / "lives").iterdir()))
    assert (lives, saved_steps(folder / "runs" / "twice") != []) == (2, True)


def test_a_restart_of_the_kernel_saves_and_the_new_one_continues(
    notebook: Notebook, folder: Path
) -> None:
    """Jupyter interrupts a kernel before it shuts it down."""
    train = f"run = experiment.train(steps={STEPS}, folder='runs/restarted')"
    sent = notebook.client.execute(train)
    while True:
        message = notebook.client.get_iopub_msg(PATIENCE)
        if message["parent_header"].get("msg_id") == sent:
            assert message["msg_type"] != "error", message["content"]
            if f"/{STEPS}  loss" in message["content"].get("text", ""):
                break
    notebook.client.stop_channels()
    notebook.manager.restart_kernel()
    (step,) = saved_steps(folder / "runs" / "restarted")[-1:]
    life = json.loads((folder / "runs" / "restarted" / "lives" / "000001.json").read_text())
    assert (life["ended"], life["reached"]) == ("stopped", step)
    notebook.connect()
    notebook.run(SETUP)
    continued = notebook.run(train)
    assert continued.error is None
    assert f"tiny-lm: resumed from step {step}" in continued.lines
    assert notebook.show("run.step") == STEPS
