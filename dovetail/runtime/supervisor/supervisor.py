"""The supervisor itself: a loop that starts workers, watches them, and restarts them.

Invariants:
- All workers of a life start together and end together: if one dies or hangs, all are killed.
- Every life has a new coordinator address, so that a peer of an earlier life cannot join it.
- The exit code decides: 0 is done, 2 is never retried, 75 is a requested stop. Any other code is
  restarted within the budget, if the run folder still exists.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from dovetail.runtime.heartbeat import ADDRESS, DUMP_STACKS, STACKS
from dovetail.runtime.supervisor.alerts import alert
from dovetail.runtime.supervisor.channel import Channel
from dovetail.runtime.supervisor.restarts import Death, Restarts
from dovetail.runtime.supervisor.spares import Spares
from dovetail.runtime.supervisor.watchdog import Hang, Limits, Watchdog, check_range
from dovetail.utils import format_bytes, format_duration

STOPPED = 75
_WRONG_INPUT = 2
_SECONDS_BETWEEN_POLLS = 0.1
_SECONDS_TO_READ = 5.0  # the last messages of workers that have ended
_SECONDS_FOR_STACKS = 1.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


@dataclass(frozen=True)
class SupervisorSettings:
    """The settings of a supervisor. One out of range raises a ConfigError that names it.

    Attributes:
        processes: how many workers there are on this host.
        restarts_per_cause: how often a life is restarted for one cause.
        limits: how long a worker may go without progress.
        grace: how many seconds workers have to end after a signal.
        first_pause: the seconds before the first restart; each further one doubles them.
        min_processes: after a cause has used up its restarts, the run continues with fewer
            processes, but at least this many; None always uses all.
        spares: how many warm processes wait to replace workers.
        alert: a command or a URL that receives a message about restarts and the end, or None.
    """

    processes: int = 1
    restarts_per_cause: int = 10
    limits: Limits = field(default_factory=Limits)
    grace: float = 120.0
    first_pause: float = 1.0
    min_processes: int | None = None
    spares: int = 0
    alert: str | None = None

    def __post_init__(self) -> None:
        check_range("processes", self.processes, 1)
        check_range("restarts_per_cause", self.restarts_per_cause, 0)
        check_range("grace", self.grace, 0)
        check_range("first_pause", self.first_pause, 0)
        if self.min_processes is not None:
            check_range("min_processes", self.min_processes, 1)
        check_range("spares", self.spares, 0)


class Supervisor:
    """Runs a command as workers until it is done."""

    def __init__(
        self,
        command: Sequence[str],
        settings: SupervisorSettings,
        say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    ) -> None:
        """Takes the command of one worker; starts nothing yet."""
        self._command, self._settings, self._say = list(command), settings, say
        self._workers: list[subprocess.Popen[bytes]] = []
        self._received: signal.Signals | None = None
        self._asked_at = 0.0
        self._folder: Path | None = None
        self._life = 0
        self._count = settings.processes
        self._spares = Spares(command, settings.spares)
        self._warned: set[str] = set()

    def run(self) -> int:
        """Returns the exit code of the run."""
        restarts = self._new_restarts()
        self._channel = Channel()
        with self._signals(), tempfile.TemporaryDirectory(prefix="dovetail-") as scratch:
            self._scratch = Path(scratch)
            try:
                while True:
                    outcome = self._live()
                    if isinstance(outcome, int):
                        return outcome
                    if self._is_folder_removed():
                        self._announce(
                            f"{outcome.message}. {self._folder} was removed or replaced, so no "
                            "restart can resume from its checkpoints. Restore the folder from a "
                            "copy, then resume the run."
                        )
                        return _WRONG_INPUT
                    decision = restarts.after(outcome)
                    self._record(outcome, restarts.total, decision.give_up)
                    if decision.give_up is not None and (fewer := self._fewer()) is None:
                        self._announce(
                            f"{outcome.message}; {decision.give_up}. It ends here.", outcome.halt
                        )
                        return 1
                    if decision.give_up is not None:
                        self._announce(
                            f"{outcome.message}; {decision.give_up}. Going on with {fewer} "
                            f"instead of {self._count} processes.",
                            outcome.halt,
                        )
                        self._count, restarts = fewer or 1, self._new_restarts()
                        continue
                    self._announce(
                        f"{outcome.message}. Restart {restarts.total} in "
                        f"{format_duration(decision.pause)}.",
                        outcome.halt,
                    )
                    self._sleep(decision.pause)
                    if self._received is not None:
                        return STOPPED
            finally:
                self._kill()
                self._spares.kill()
                self._channel.close()

    def _new_restarts(self) -> Restarts:
        return Restarts(self._settings.restarts_per_cause, first_pause=self._settings.first_pause)

    def _fewer(self) -> int | None:
        """Returns the next smaller number of processes; None if it may not be smaller.

        It divides the first number, so the batch divides over it, too.
        """
        low, all_of_them = self._settings.min_processes, self._settings.processes
        if low is None:
            return None
        smaller = [n for n in range(max(low, 1), self._count) if all_of_them % n == 0]
        return max(smaller, default=None)

    def _live(self) -> int | Death:
        """Runs one life. Returns the exit code of the run, or how the life ended."""
        self._life += 1
        self._start()
        watchdog = Watchdog(self._settings.limits)
        has_spares = False
        while True:
            if not has_spares and self._furthest_step() is not None:
                self._spares.fill()  # not earlier: importing would slow the start down
                has_spares = True
            codes = [worker.poll() for worker in self._workers]
            if all(code is not None for code in codes) or any(code for code in codes):
                return self._ended(codes)
            self._pass_on_warnings()
            if self._received is None:
                hang = watchdog.check(self._channel.heartbeats())
                if hang is not None:
                    return self._end_hang(hang)
            elif time.monotonic() - self._asked_at > self._settings.grace:
                self._kill()
                self._say(
                    f"supervisor: not saved within {format_duration(self._settings.grace)}; killed"
                )
                return STOPPED
            time.sleep(_SECONDS_BETWEEN_POLLS)

    def _start(self) -> None:
        count = self._count
        self._channel.reset(count)
        environment = {ADDRESS: self._channel.address}
        if count > 1:
            environment["DOVETAIL_COORDINATOR"] = f"127.0.0.1:{_free_port()}"
            environment["DOVETAIL_PROCESSES"] = str(count)
        self._workers = []
        for index in range(count):
            own = {STACKS: str(self._stacks(index))}
            if count > 1:
                own["DOVETAIL_PROCESS"] = str(index)
            spare = self._spares.take({**environment, **own})
            # A group of its own, so that nothing of a worker outlives it.
            self._workers.append(
                spare
                or subprocess.Popen(
                    self._command,
                    env={**os.environ, **environment, **own},
                    stdout=None if index == 0 else subprocess.DEVNULL,
                    start_new_session=True,
                )
            )

    def _ended(self, codes: Sequence[int | None]) -> int | Death:
        """Ends the other workers after one has ended, and decides how the life ended."""
        first = list(codes)
        codes = self._wait_for_others(codes)
        self._channel.wait_until_read(_SECONDS_TO_READ)
        self._pass_on_warnings()
        if all(code == 0 for code in codes):
            return 0
        if _WRONG_INPUT in codes:
            return _WRONG_INPUT
        # Those that lost a peer may end meanwhile, too: the first to end is the cause.
        bad = _failures(first) or _failures(codes)
        if self._received is not None or not bad:
            return STOPPED
        index, code = bad[0]
        cause = f"crash by {_signal_name(code)}" if code < 0 else f"exit with code {code}"
        step, facts = self._furthest_step(), self._halt_facts()
        message = f"process {index} ended: {cause}{_after(step)}"
        halt, restart_helps = str(facts.get("halt", "")), facts.get("restart_helps", True)
        return Death(cause, message, step, halt, restart_helps is not False)

    def _halt_facts(self) -> dict[str, Any]:
        """Returns the facts of a worker that a fault policy has stopped, if there is one."""
        found = [record.facts for record in self._channel.heartbeats().values()]
        return next((facts for facts in found if "halt" in facts), {})

    def _wait_for_others(self, codes: Sequence[int | None]) -> list[int | None]:
        """Gives the others a moment to end by themselves, because they may report the cause."""
        deadline = time.monotonic() + (2.0 if self._received is None else self._settings.grace)
        while any(code is None for code in codes) and time.monotonic() < deadline:
            time.sleep(_SECONDS_BETWEEN_POLLS)
            codes = [worker.poll() for worker in self._workers]
        self._kill()
        return list(codes)

    def _end_hang(self, hang: Hang) -> Death:
        """Writes the stacks and phases of the workers, then kills them."""
        report = self._describe_workers()
        for worker in self._workers:
            with contextlib.suppress(ProcessLookupError):
                worker.send_signal(DUMP_STACKS)
        time.sleep(_SECONDS_FOR_STACKS)
        stacks = [
            f"process {index}\n{file.read_text(errors='replace')}"
            for index in range(len(self._workers))
            if (file := self._stacks(index)).exists()
        ]
        where = self._save_report("\n".join([str(hang), *report, *stacks]))
        self._kill()
        cause = f"hang in the phase {hang.phase!r}"
        return Death(cause, f"{hang}{where}", self._furthest_step())

    def _describe_workers(self) -> list[str]:
        lines = []
        for index, beat in sorted(self._channel.heartbeats().items()):
            pid = self._workers[index].pid
            lines.append(
                f"process {index} (pid {pid}): phase {beat.phase}, step {beat.step}, last message "
                f"{format_duration(time.monotonic() - beat.received)} ago, {_utilization(pid)}"
            )
        return lines

    def _save_report(self, text: str) -> str:
        folder = self._run_folder()
        if folder is None:
            self._say(text)
            return ""
        file = folder / "hangs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{self._life}.txt"
        try:
            file.parent.mkdir(exist_ok=True)
            file.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            return f" ({file} cannot be written: {error.strerror})"
        return f" (stacks of all threads: {file})"

    def _record(self, death: Death, number: int, give_up: str | None) -> None:
        """Adds the death to the events of the run."""
        folder = self._run_folder()
        entry = {
            "time": round(time.time(), 3),
            "event": "Restart" if give_up is None else "GiveUp",
            "step": death.step,
            "cause": death.cause,
            "message": death.message,
            "restarts": number,
        }
        if folder is not None:
            with (
                contextlib.suppress(OSError),
                (folder / "events.jsonl").open("a", encoding="utf-8") as file,
            ):
                file.write(json.dumps(entry) + "\n")

    def _announce(self, message: str, halt: str = "") -> None:
        """Says and alerts; the worker itself has said the sentence of a halt already."""
        self._say(f"supervisor: {message}")
        message = f"{message} {halt}".strip()
        if self._settings.alert is not None:
            problem = alert(self._settings.alert, message, str(self._run_folder() or ""))
            if problem is not None:
                self._say(f"supervisor: the alert failed: {problem}")

    def _pass_on_warnings(self) -> None:
        """Sends an alert for each warning of a worker, once."""
        for beat in self._channel.heartbeats().values():
            warning = beat.facts.get("warning")
            if warning and warning not in self._warned:
                self._warned.add(warning)
                self._announce(str(warning))

    def _run_folder(self) -> Path | None:
        """Returns the run folder that workers of this or an earlier life named."""
        found = [beat.facts.get("folder") for beat in self._channel.heartbeats().values()]
        self._folder = next((Path(folder) for folder in found if folder), self._folder)
        return self._folder if self._folder is not None and self._folder.is_dir() else None

    def _is_folder_removed(self) -> bool:
        """Returns whether the run that workers trained is no longer in its folder.

        A new life would start at step 0 there, and nobody would notice.
        """
        self._run_folder()
        if self._folder is None or self._furthest_step() is None:
            return False
        try:
            return not (self._folder / "lives").is_dir()
        except OSError:  # the disk does not answer: that is no removed folder
            return False

    def _furthest_step(self) -> int | None:
        steps = [beat.step for beat in self._channel.heartbeats().values() if beat.step is not None]
        return max(steps, default=None)

    def _stacks(self, index: int) -> Path:
        return self._scratch / f"life-{self._life}-process-{index}.txt"

    @contextlib.contextmanager
    def _signals(self) -> Any:
        """Forwards signals that ask to stop to the workers."""
        before = {number: signal.signal(number, self._receive) for number in _STOP_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._received is None:
            self._asked_at = time.monotonic()
        self._received = signal.Signals(number)
        for worker in self._workers:
            with contextlib.suppress(ProcessLookupError):
                worker.send_signal(number)

    def _sleep(self, seconds: float) -> None:
        """Pauses; a signal ends the pause."""
        end = time.monotonic() + seconds
        while self._received is None and time.monotonic() < end:
            time.sleep(_SECONDS_BETWEEN_POLLS)

    def _kill(self) -> None:
        """Kills the process groups of all workers, and waits for them."""
        for worker in self._workers:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(worker.pid, signal.SIGKILL)
        for worker in self._workers:
            worker.wait()


def _failures(codes: Sequence[int | None]) -> list[tuple[int, int]]:
    """Returns index and exit code of workers that failed, those killed by a signal first."""
    bad = [(i, code) for i, code in enumerate(codes) if code is not None and code != 0]
    return sorted((each for each in bad if each[1] != STOPPED), key=lambda each: each[1] > 0)


def _after(step: int | None) -> str:
    return " before its first step" if step is None else f", after step {step}"


def _signal_name(code: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _utilization(pid: int) -> str:
    """Returns processor time and memory of a process, as Linux reports them."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        memory = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return "no utilization known"
    seconds = ticks / os.sysconf("SC_CLK_TCK")
    return (
        f"state {fields[0]}, {format_duration(seconds)} of processor time, {format_bytes(memory)}"
    )
