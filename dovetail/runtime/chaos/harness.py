"""The harness: runs a trial with real processes, and judges it.

A trial is good if the run finishes by itself with the losses of every step and the digests of the
final state equal, bit for bit, to an undisturbed run's. A kind of fault may define another goal
(`kinds.py`).
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dovetail.runtime.chaos.broken import BREAK
from dovetail.runtime.chaos.damage import NothingSavedError
from dovetail.runtime.chaos.judging import (
    Delays,
    Result,
    continued_from,
    delays,
    difference,
    last_line,
    lives,
    noticed,
    outcome,
    repeated,
    verified_saves,
)
from dovetail.runtime.chaos.kinds import KINDS
from dovetail.runtime.chaos.surroundings import DISK, UnavailableError
from dovetail.runtime.chaos.trials import SAVE_EVERY, STEPS, Trial
from dovetail.runtime.points import FAULTS, FOLDER, PROCESS
from dovetail.utils import format_duration

# A model of a few thousand parameters: starting a process takes longer than training it.
SMALL = (
    "model.width=16",
    "model.decoder.stack.num_layers=1",
    "model.decoder.stack.layer.attention.num_heads=2",
    "model.decoder.stack.layer.feed_forward.hidden=16",
    "input.tokenizer.vocab_size=300",
    "input.sequence_length=16",
    "input.batch_size=8",
    "mesh.fsdp=1",
    "mesh.data=-1",
    "evaluators.held_out.num_batches=1",
    "evaluators.samples.max_new_tokens=4",
    "evaluators.samples.samples_per_prompt=1",
)
_STOPPED, _BAD = 75, 2
_HANG_SECONDS = 10
_MOST_SECONDS = 300.0
_MOST_COMMANDS = 4
# A runtime that is broken on purpose may fail over and over.
_RESTARTS_OF_A_CONTROL = 1
DEVICES = "JAX_NUM_CPU_DEVICES"
_FENCED = "has started"
_SHOWN_OUTPUT = 20_000  # characters of a trial that was not survived


class Chaos:
    """Runs trials in a scratch folder."""

    def __init__(self, scratch: Path, mutation: str | None = None) -> None:
        """Takes the scratch folder; a mutation breaks the runtime on purpose (`broken.py`)."""
        self._scratch, self._mutation = scratch, mutation
        self._expected: dict[Any, Any] = {}

    def run(self, trial: Trial, progress: Callable[[str], None] = lambda line: None) -> Result:
        """Runs one trial, and the undisturbed run that it is compared with."""
        options = KINDS[trial.kind].options
        key = (trial.processes, options)
        if key not in self._expected:
            progress(f"an undisturbed run with {trial.processes} process(es)")
            self._expected[key] = self._undisturbed(trial.processes, options)
        folder = self._scratch / "trial"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        progress(str(trial))
        started = time.monotonic()
        try:
            with KINDS[trial.kind].surroundings(folder) as prefix:
                command = _Command(trial, folder, tuple(prefix), self._mutation)
                problem = command.strike()
                run = command.run_folder
                if problem is None and KINDS[trial.kind].says is None:
                    problem = difference(trial, self._expected[key], outcome(run))
                return Result(
                    trial,
                    injected=any(folder.glob(f"injected {trial.point}@*")),
                    lives=len(lives(run)),
                    repeated=repeated(lives(run)),
                    seconds=time.monotonic() - started,
                    delays=delays(folder, run),
                    problem=problem,
                    noticed=noticed(command.said()),
                    output="" if problem is None else command.said()[-_SHOWN_OUTPUT:],
                )
        except UnavailableError as error:
            return Result(trial, False, 0, 0, 0.0, Delays(), str(error), "")

    def _undisturbed(self, processes: int, options: tuple[str, ...]) -> Any:
        folder = self._scratch / f"undisturbed-{processes}-{abs(hash(options))}"
        if not (folder / "run").exists():
            folder.mkdir(parents=True, exist_ok=True)
            kind = next(n for n, k in KINDS.items() if k.options == options)
            command = _Command(Trial(kind, "", 0, processes, 0), folder, (), None)
            code, output = command.train({})
            if code != 0:
                raise RuntimeError(f"the undisturbed run ended with code {code}:\n{output[-2000:]}")
        return outcome(folder / "run")


@dataclass
class _Command:
    """The command of a trial, which is run until it is done.

    Attributes:
        saved: the newest step that was saved and verified before the fault.
    """

    trial: Trial
    folder: Path
    prefix: tuple[str, ...]
    mutation: str | None
    outputs: list[str] = field(default_factory=list)
    saved: int = 0

    @property
    def run_folder(self) -> Path:
        is_ordinary = not (self.folder / DISK).exists()
        return self.folder / "run" if is_ordinary else self.folder / DISK / "run"

    def strike(self) -> str | None:
        """Runs the trial; returns the problem, if there is one."""
        kind = KINDS[self.trial.kind]
        begin = self._overlap if kind.overlaps else None
        if kind.is_between_lives:
            begin = self._between_lives
        if begin is not None and (problem := begin()) is not None:
            return problem
        processes = self.trial.processes_after
        for _ in range(_MOST_COMMANDS):
            code, output = self.train(self._faults(), processes=processes)
            if code != _STOPPED:
                break
        if "Traceback" in "\n".join(self.outputs):
            return "it printed a traceback"
        if code != (0 if kind.says is None else _BAD):
            return f"it ended with code {code}: {last_line(output)}"
        if kind.says is not None and kind.says not in output:
            return f"it did not say {kind.says!r}, but: {last_line(output)}"
        if kind.loses_no_step and (from_step := continued_from(self.run_folder)) < self.saved:
            return f"step {self.saved} was saved, but it continued from step {from_step}"
        if not re.search(kind.notice, self.said()):
            return f"nobody noticed: it said nothing like {kind.notice!r}"
        return None

    def said(self) -> str:
        """Returns the output since the fault; a kill that only prepares it does not count."""
        is_prepared = KINDS[self.trial.kind].is_between_lives
        return "\n".join(self.outputs[1:] if is_prepared else self.outputs)

    def _between_lives(self) -> str | None:
        """Kills each life but the last after a save, and damages its files."""
        trial, kind = self.trial, KINDS[self.trial.kind]
        for index, devices in enumerate(kind.devices[:-1] or (None,)):
            number = 1 if index else trial.number
            faults = {**self._faults(), FAULTS: f"{trial.point}@{number}=kill"}
            code, _ = self.train(faults, supervise=False, devices=devices)
            if code == 0:
                return "the fault was not injected: the run ended"
        self.saved = SAVE_EVERY * verified_saves(self.folder)
        if kind.damage is not None:
            try:
                kind.damage(self.folder, random.Random(trial.seed))
            except NothingSavedError as error:
                return str(error)
        return None

    def _overlap(self) -> str | None:
        """Starts a life and stops it; a second one trains to the end; then the first wakes up."""
        with self._started(self._faults(), self.trial.processes, supervise=False) as first:
            deadline = time.monotonic() + _MOST_SECONDS
            while not any(self.folder.glob("injected *")):
                if first.poll() is not None or time.monotonic() > deadline:
                    return "the first life was not stopped"
                time.sleep(0.1)
            # As on a file system without locks: the second life does not see the lock of the first.
            for lock in self.run_folder.glob(".lock*"):
                lock.unlink()
            code, output = self.train(self._faults())
            first.send_signal(signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                first.wait(_HANG_SECONDS * 3)
            ended = first.poll()
        if code != 0:
            return f"the second life ended with code {code}: {last_line(output)}"
        said = (self.folder / "output.txt").read_text(errors="replace")
        if ended in (0, None) or _FENCED not in said:
            return f"the first life was not refused; it ended with code {ended}"
        return None

    def _faults(self) -> dict[str, str]:
        """Returns the environment that injects the fault of the trial."""
        trial, kind = self.trial, KINDS[self.trial.kind]
        action = "kill" if kind.is_between_lives else kind.action
        # There is nothing to restore before a life has saved and died.
        is_restore = trial.point in ("restore read", "restore verified")
        first = "save verified@1=kill;" if is_restore else ""
        return {
            FAULTS: f"{first}{trial.point}@{trial.number}={action}",
            PROCESS: str(trial.process),
            **({BREAK: self.mutation} if self.mutation is not None else {}),
        }

    def train(
        self,
        environment: dict[str, str],
        processes: int | None = None,
        supervise: bool = True,
        devices: int | None = None,
    ) -> tuple[int, str]:
        """Trains; returns the exit code and the output."""
        processes = processes or self.trial.processes
        devices = devices or max(KINDS[self.trial.kind].devices[-1:], default=None)
        if devices is not None:
            environment = {**environment, DEVICES: str(devices)}
        log = self.folder / "output.txt"
        start = log.stat().st_size if log.exists() else 0
        with self._started(environment, processes, supervise) as process:
            try:
                code = process.wait(_MOST_SECONDS)
            except subprocess.TimeoutExpired:
                code = -1
        text = log.read_bytes()[start:].decode(errors="replace")
        if code == -1:
            text += f"\nno end within {format_duration(_MOST_SECONDS)}"
        self.outputs.append(text)
        return code, text

    @contextlib.contextmanager
    def _started(self, environment: dict[str, str], processes: int, supervise: bool) -> Any:
        devices = {DEVICES: "1"} if max(processes, self.trial.processes) > 1 else {}
        with (self.folder / "output.txt").open("ab") as file:
            process = subprocess.Popen(
                [*self.prefix, *self._words(processes, supervise)],
                env={**os.environ, **devices, FOLDER: str(self.folder), **environment},
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                yield process
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _words(self, processes: int, supervise: bool) -> list[str]:
        words = [sys.executable, "-m", "dovetail", "train", "tiny-lm", *SMALL]
        words += ["--run", str(self.run_folder), "--steps", str(STEPS)]
        words += [f"mesh.fsdp={processes}"]  # each process has its own shards of the state
        words += [f"checkpointer.every={SAVE_EVERY}", "checkpointer.deadline_seconds=30"]
        words += [each.format(folder=self.folder) for each in KINDS[self.trial.kind].options]
        if self.trial.local:
            words += ["checkpointer.local=LocalTier", "checkpointer.local.every=2"]
            words += [f"checkpointer.local.folder={self.folder}/host-{{process}}"]
        if supervise or processes > 1:
            words += ["--supervise", "--processes", str(processes)]
            words += ["--hang-seconds", str(_HANG_SECONDS)]
        if not supervise and processes > 1:
            words += ["--restarts", "0"]
        elif self.mutation is not None and supervise:
            words += ["--restarts", str(_RESTARTS_OF_A_CONTROL)]
        return words
