"""The harness: runs a trial with real processes, and judges how it went.

A trial is good if the run finishes by itself with the losses of every step and the digests of the
final state equal, bit for bit, to those of an undisturbed run.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.runtime.chaos.broken import BREAK
from dovetail.runtime.chaos.kinds import KINDS, SAVE_EVERY, STEPS, Trial
from dovetail.runtime.points import FAULTS, FOLDER, PROCESS

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


@dataclass(frozen=True)
class Result:
    """How a trial went; `problem` is None if all is well."""

    trial: Trial
    injected: bool
    lives: int
    repeated: int
    """Steps that were computed more than once."""
    seconds: float
    problem: str | None
    noticed: str
    """What the run said about the fault."""


class Chaos:
    """Runs trials in a scratch folder."""

    def __init__(self, scratch: Path, mutation: str | None = None) -> None:
        """Takes the scratch folder; a mutation breaks the runtime on purpose (`broken.py`)."""
        self._scratch, self._mutation = scratch, mutation
        self._expected: dict[int, Any] = {}

    def run(self, trial: Trial, progress: Callable[[str], None] = lambda line: None) -> Result:
        """Runs one trial, and the undisturbed run that it is compared with."""
        if trial.processes not in self._expected:
            progress(f"an undisturbed run with {trial.processes} process(es)")
            self._expected[trial.processes] = self._undisturbed(trial.processes)
        folder = self._scratch / "trial"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        progress(str(trial))
        started = time.monotonic()
        problem, output = self._strike(trial, folder)
        run = folder / "run"
        return Result(
            trial,
            injected=any(folder.glob(f"injected {trial.point}@*")),
            lives=len(_lives(run)),
            repeated=_repeated(_lives(run)),
            seconds=time.monotonic() - started,
            problem=problem or self._compare(run, trial),
            noticed=_noticed(output),
        )

    def _undisturbed(self, processes: int) -> Any:
        folder = self._scratch / f"undisturbed-{processes}"
        if not (folder / "run").exists():
            folder.mkdir(parents=True, exist_ok=True)
            code, output = self._command(folder, {}, Trial("kill", "", 0, processes, 0))
            if code != 0:
                raise RuntimeError(f"the undisturbed run ended with code {code}:\n{output[-2000:]}")
        return _outcome(folder / "run")

    def _strike(self, trial: Trial, folder: Path) -> tuple[str | None, str]:
        """Runs the command until it is done; returns what went wrong, and the output."""
        kind, outputs = KINDS[trial.kind], []
        action = "kill" if kind.damage else kind.action
        fault = f"{trial.point}@{trial.number}={action}"
        # There is nothing to restore before a life has saved and died.
        first = (
            "save verified@1=kill;" if trial.point in ("restore read", "restore verified") else ""
        )
        environment = {
            FAULTS: first + fault,
            FOLDER: str(folder),
            PROCESS: str(trial.seed % trial.processes),
        }
        if self._mutation is not None:
            environment[BREAK] = self._mutation
        if kind.damage:
            code, output = self._command(folder, environment, trial, supervise=False)
            outputs.append(output)
            if code == 0:
                return "the fault was not injected: the run ended", output
            damaged = folder if kind.local else _newest_checkpoint(folder / "run" / "checkpoints")
            if damaged is None:
                return "no checkpoint was committed before the fault", output
            kind.damage(damaged, random.Random(trial.seed))
        for _ in range(_MOST_COMMANDS):
            code, output = self._command(folder, environment, trial)
            outputs.append(output)
            if code != _STOPPED:
                break
        text = "\n".join(outputs)
        if "Traceback" in text:
            return "it printed a traceback", text
        if code != (0 if kind.says is None else _BAD):
            return f"it ended with code {code}: {_last_line(output)}", text
        if kind.says is not None and kind.says not in output:
            return f"it did not say {kind.says!r}, but: {_last_line(output)}", text
        return None, text

    def _command(
        self, folder: Path, environment: dict[str, str], trial: Trial, supervise: bool = True
    ) -> tuple[int, str]:
        """Trains in a folder; returns the exit code and the output."""
        processes = trial.processes
        command = [sys.executable, "-m", "dovetail", "train", "tiny-lm", *SMALL]
        command += ["--run", str(folder / "run"), "--steps", str(STEPS)]
        command += [f"mesh.fsdp={processes}"]  # each process has its own shards of the state
        command += [f"checkpointer.every={SAVE_EVERY}", "checkpointer.deadline_seconds=30"]
        if trial.local:
            command += ["checkpointer.local=LocalTier", "checkpointer.local.every=2"]
            command += [f"checkpointer.local.folder={folder}/host-{{process}}"]
        if supervise or processes > 1:
            command += ["--supervise", "--processes", str(processes)]
            command += ["--hang-seconds", str(_HANG_SECONDS)]
        if not supervise and processes > 1:
            command += ["--restarts", "0"]
        devices = {"JAX_NUM_CPU_DEVICES": "1"} if processes > 1 else {}
        log = folder / "output.txt"
        with log.open("ab") as file:
            start = file.tell()
            process = subprocess.Popen(
                command,
                env={**os.environ, **devices, **environment},
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(_MOST_SECONDS)
            except subprocess.TimeoutExpired:
                code = -1
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
        text = log.read_bytes()[start:].decode(errors="replace")
        return code, text if code != -1 else f"{text}\nno end within {_MOST_SECONDS:.0f} s"

    def _compare(self, run: Path, trial: Trial) -> str | None:
        """Returns how a finished run differs from an undisturbed one."""
        if KINDS[trial.kind].says is not None:
            return None  # it said why it could not go on
        expected, got = self._expected[trial.processes], _outcome(run)
        for step in range(1, STEPS + 1):
            if got["losses"].get(step) != expected["losses"][step]:
                was = got["losses"].get(step, "missing")
                return f"the loss of step {step} is {was}, expected {expected['losses'][step]}"
        different = [p for p, d in expected["digests"].items() if got["digests"].get(p) != d]
        return f"{different[0]} differs in the final state" if different else None


def _newest_checkpoint(checkpoints: Path) -> Path | None:
    manifests = checkpoints.glob("*/manifest.json")
    newest = max(manifests, key=lambda file: int(file.parent.name), default=None)
    return None if newest is None else newest.parent


def _outcome(run: Path) -> dict[str, Any]:
    """Returns the losses by step, and the digests of the final state."""
    losses = {}
    with contextlib.suppress(OSError):
        for line in (run / "metrics.jsonl").read_text().splitlines():
            entry = json.loads(line)
            if "loss" in entry:
                losses[entry["step"]] = entry["loss"]
    digests = {}
    with contextlib.suppress(OSError):
        manifest = json.loads((run / "checkpoints" / str(STEPS) / "manifest.json").read_text())
        digests = {path: array["digest"] for path, array in manifest["arrays"].items()}
    return {"losses": losses, "digests": digests}


def _lives(run: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted((run / "lives").glob("*.json"))]


def _repeated(lives: Sequence[dict[str, Any]]) -> int:
    """Returns how many steps were computed again by a later life."""
    furthest = repeated = 0
    for life in lives:
        restored, reached = life.get("restored") or 0, life.get("reached") or 0
        repeated += max(furthest - restored, 0)
        furthest = max(furthest, reached)
    return repeated


def _noticed(output: str) -> str:
    """Returns the first line of the output that speaks of the fault."""
    words = ("supervisor:", "WARNING", "warning:", "failed", "stopped by", "cannot be used")
    lines = (line.strip() for line in output.splitlines())
    return next((line[:160] for line in lines if any(word in line for word in words)), "")


def _last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no output"
