"""The supervisor with real processes: crashes, hangs, signals, budgets. The workers use no JAX."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli import main
from dovetail.config import ConfigError
from dovetail.runtime.lives import suspects, take_life
from dovetail.runtime.supervisor import Limits, Supervisor, SupervisorSettings
from dovetail.runtime.supervisor.alerts import alert
from dovetail.runtime.supervisor.channel import HeartbeatRecord
from dovetail.runtime.supervisor.restarts import Death, Restarts
from dovetail.runtime.supervisor.spares import Spares
from dovetail.runtime.supervisor.supervisor import _failures
from dovetail.runtime.supervisor.watchdog import Watchdog

# A worker counts its lives in a file. `live(n)` is its n-th life, with a heartbeat.
WORKER = """
import ctypes, os, pathlib, signal, subprocess, sys, time
from dovetail.runtime.heartbeat import Heartbeat

from dovetail.runtime.supervisor import spares

spares._MODULES = ()
was_spare = spares.SPARE in os.environ
if was_spare:
    (pathlib.Path(sys.argv[1]) / "a spare waits").touch()
spares.wait_until_needed()
folder, index = pathlib.Path(sys.argv[1]), int(os.environ.get("DOVETAIL_PROCESS", "0"))
counter = folder / f"lives-{index}"
life = int(counter.read_text()) + 1 if counter.exists() else 1
counter.write_text(str(life))
(folder / "lives").mkdir(exist_ok=True)
with (folder / f"coordinators-{index}").open("a") as file:
    file.write(os.environ.get("DOVETAIL_COORDINATOR", "none") + "\\n")

def die(number):
    os.kill(os.getpid(), number)
    time.sleep(60)

def hold_the_gil():
    ctypes.PyDLL(None).sleep(600)

with Heartbeat(index) as heartbeat:
    heartbeat.send(folder=str(folder))
    for step in range(1, 4):
        heartbeat.reached(step)
        time.sleep(0.05)
    time.sleep(0.3)
"""
SPARE_WORKER = """
from dovetail.runtime.supervisor import spares
spares._MODULES = ()
spares.wait_until_needed()
raise SystemExit(3)
"""
QUICK = Limits(step=2, phases={"start": 60.0, "end": 60.0}, silence=60)
SILENT = Limits(step=60, phases={"start": 60.0, "end": 60.0}, silence=3)


def supervised(folder: Path, story: str, **values: Any) -> tuple[int, list[str]]:
    """Runs a worker that ends its life with a story; returns the code and what was said."""
    said: list[str] = []
    script = folder / "worker.py"
    body = textwrap.indent(textwrap.dedent(story), "    ")
    script.write_text(WORKER + body)
    settings = SupervisorSettings(**{"limits": QUICK, "first_pause": 0.05, **values})
    command = [sys.executable, str(script), str(folder)]
    code = Supervisor(command, settings, said.append).run()
    return code, said


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def lives(folder: Path, index: int = 0) -> int:
    return int((folder / f"lives-{index}").read_text())


def test_a_warning_of_a_worker_is_passed_on_once(tmp_path: Path) -> None:
    story = """
        heartbeat.send(warning="Process 1 is slow.")
        heartbeat._changed.set()
        time.sleep(1)
        heartbeat._changed.set()
        time.sleep(0.5)
    """
    assert supervised(tmp_path, story, limits=SILENT) == (0, ["supervisor: Process 1 is slow."])


def test_a_run_goes_on_with_fewer_processes(tmp_path: Path) -> None:
    """One of four always dies, so two go on: the batch divides over them."""
    story = "if int(os.environ.get('DOVETAIL_PROCESSES', '1')) == 4 and index == 3: die(9)"
    code, said = supervised(
        tmp_path, story, processes=4, restarts_per_cause=1, min_processes=2, limits=SILENT
    )
    assert code == 0
    assert "Going on with 2 instead of 4 processes." in said[-1]
    assert lives(tmp_path, 0) == 3
    assert lives(tmp_path, 2) == 2


def test_but_not_with_too_few(tmp_path: Path) -> None:
    values: dict[str, Any] = {"restarts_per_cause": 0, "min_processes": 2, "limits": SILENT}
    code, said = supervised(tmp_path, "die(9)", processes=2, **values)
    assert code == 1
    assert said[-1].endswith("It ends here.")


def test_a_spare_replaces_a_dead_worker(tmp_path: Path) -> None:
    """The second life is a process that was started in the first."""
    story = """
        (folder / f"started-{life}").write_text(str(was_spare))
        if life == 1:
            while not (folder / "a spare waits").exists():
                time.sleep(0.05)
            die(signal.SIGKILL)
    """
    assert supervised(tmp_path, story, spares=1, limits=SILENT)[0] == 0
    assert (tmp_path / "started-1").read_text() == "False"
    assert (tmp_path / "started-2").read_text() == "True"


def test_a_spare_ends_with_its_supervisor(tmp_path: Path) -> None:
    spares = Spares([sys.executable, "-c", SPARE_WORKER, str(tmp_path)], 1)
    spares.fill()
    (spare,) = spares._waiting
    spare.stdin.close()  # as when the supervisor is killed
    assert spare.wait(60) == 0


def test_a_worker_that_ends_well_ends_the_run(tmp_path: Path) -> None:
    assert supervised(tmp_path, "") == (0, [])
    assert lives(tmp_path) == 1


def test_a_crashed_worker_is_restarted(tmp_path: Path) -> None:
    code, said = supervised(tmp_path, "if life < 3: die(signal.SIGKILL)")
    assert code == 0
    assert lives(tmp_path) == 3
    assert said[0].startswith(
        "supervisor: process 0 ended: crash by SIGKILL, after step 3. Restart 1"
    )
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(event["event"], event["cause"], event["step"]) for event in events] == [
        ("Restart", "crash by SIGKILL", 3)
    ] * 2


def test_a_death_before_the_first_message_is_recorded_too(tmp_path: Path) -> None:
    script = "if life == 2: die(signal.SIGKILL)\nwith Heartbeat"
    worker = WORKER.replace("with Heartbeat", script)
    (tmp_path / "worker.py").write_text(worker + "    if life == 1: die(signal.SIGKILL)\n")
    said: list[str] = []
    settings = SupervisorSettings(limits=QUICK, first_pause=0.05)
    command = [sys.executable, str(tmp_path / "worker.py"), str(tmp_path)]
    assert Supervisor(command, settings, said.append).run() == 0
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 2


def test_a_run_whose_folder_was_removed_is_not_started_again(tmp_path: Path) -> None:
    """The new life would train from step 0, in a folder that looks like the old one."""
    code, said = supervised(tmp_path, "(folder / 'lives').rmdir(); die(9)")
    assert (code, lives(tmp_path)) == (2, 1)
    assert "SIGKILL, after step 3" in said[0]
    assert f"{tmp_path} was removed or replaced" in said[0]


def test_wrong_input_is_never_retried(tmp_path: Path) -> None:
    code, said = supervised(tmp_path, "sys.exit(2)")
    assert (code, said, lives(tmp_path)) == (2, [], 1)


@pytest.mark.parametrize(
    ("stuck", "limits", "sentence"),
    [
        ("time.sleep(600)", QUICK, "process 0 made no progress for"),
        ("hold_the_gil()", SILENT, "process 0 sent nothing for"),
        ("os.kill(os.getpid(), signal.SIGSTOP)", SILENT, "process 0 sent nothing for"),
    ],
    ids=["asleep", "holds the GIL", "SIGSTOP"],
)
def test_a_hang_is_found_explained_and_ended(
    tmp_path: Path, stuck: str, limits: Limits, sentence: str
) -> None:
    code, said = supervised(tmp_path, f"if life == 1: {stuck}", limits=limits)
    assert code == 0
    assert lives(tmp_path) == 2
    assert sentence in said[0]
    assert "after step 3" in said[0]
    (report,) = (tmp_path / "hangs").iterdir()
    text = report.read_text()
    assert "process 0 (pid " in text
    assert " of processor time" in text
    if "SIGSTOP" not in stuck:  # a stopped process cannot write
        assert "worker.py" in text, "the stack of the thread that is stuck"


def test_a_slow_start_is_no_hang(tmp_path: Path) -> None:
    story = "with heartbeat.phase('start'): time.sleep(2.5)"
    assert supervised(tmp_path, story) == (0, [])


def test_a_worker_that_waits_for_another_is_no_hang(tmp_path: Path) -> None:
    """As in a collective, for a process that still compiles."""
    story = """
        if index == 1:
            with heartbeat.phase("compile"): time.sleep(4)
        else: time.sleep(5)
    """
    limits = Limits(step=1, phases={"start": 60.0, "compile": 60.0, "end": 60.0})
    assert supervised(tmp_path, story, processes=2, limits=limits) == (0, [])


def test_a_step_that_always_kills_ends_the_run(tmp_path: Path) -> None:
    code, said = supervised(tmp_path, "die(signal.SIGSEGV)")
    assert code == 1
    assert lives(tmp_path) == 4
    assert "step 4 always kills" in said[-1]
    assert "input.skips=((3,4),)" in said[-1]


def test_a_suspect_checkpoint_is_skipped_before_the_supervisor_gives_up(tmp_path: Path) -> None:
    """Life 1 saves a bad state at step 40, and lives that start from it die at once."""
    restarts, found = Restarts(), set[int]()
    for begin in (0, 40, 40):
        life = take_life(tmp_path)
        life.resumed_from(begin)
        life._record(reached=41)
        assert restarts.after(Death("exit with code 1", "", 41)).give_up is None
    life = take_life(tmp_path)
    found = suspects(tmp_path, life.number)
    assert found == {40}


def test_a_worker_at_its_end_is_not_silent() -> None:
    """It sends its last message, and then ends; JAX's shutdown may take a while."""
    now = time.monotonic()
    beat = HeartbeatRecord(now - 30, now - 30, "end", 12, {"pid": 1})
    limits = Limits(silence=10.0)
    assert Watchdog(limits).check({0: beat}) is None
    assert Watchdog(limits).check({0: dataclasses.replace(beat, phase="step")}) is not None
    late = dataclasses.replace(beat, progressed=now - 700)
    assert "made no progress" in str(Watchdog(limits).check({0: late}))


def test_a_step_is_sent_at_once(tmp_path: Path) -> None:
    """A kill right after a step is counted at that step, whatever the interval of messages is."""
    code, said = supervised(tmp_path, "heartbeat.reached(9); time.sleep(0.5); die(9)")
    assert code == 1
    assert "step 10 always kills" in said[-1]


def test_the_budget_is_counted_by_cause() -> None:
    restarts = Restarts(per_cause=2)
    causes = ["crash by SIGKILL", "hang", "crash by SIGKILL", "hang"]
    for step, cause in enumerate(causes):
        assert restarts.after(Death(cause, "", step)).give_up is None
    assert "more than 2 restarts because of a hang" in str(
        restarts.after(Death("hang", "", 9)).give_up
    )


def test_the_pause_grows_without_progress() -> None:
    restarts = Restarts(per_cause=100, longest_pause=5.0)
    pauses = [restarts.after(Death(f"{i}", "", 7)).pause for i in range(5)]
    assert pauses == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert restarts.after(Death("x", "", 8)).pause == 1.0, "a new step is progress"


def test_all_workers_live_and_die_together(tmp_path: Path) -> None:
    story = """
        if life == 1 and index == 1: die(signal.SIGKILL)
        if life == 1: time.sleep(600)
    """
    code, said = supervised(tmp_path, story, processes=2, limits=Limits(step=60))
    assert code == 0
    assert [lives(tmp_path, index) for index in (0, 1)] == [2, 2]
    assert "process 1 ended: crash by SIGKILL" in said[0]
    seen = [(tmp_path / f"coordinators-{index}").read_text().split() for index in (0, 1)]
    assert seen[0] == seen[1]
    assert len(set(seen[0])) == 2, "each life has its own address"


def test_workers_end_without_their_supervisor(tmp_path: Path) -> None:
    """It was killed, so nobody would restart or stop them."""
    script = tmp_path / "worker.py"
    body = """
        (folder / "pid").write_text(str(os.getpid()))
        signal.signal(signal.SIGTERM, lambda *_: ((folder / "asked").touch(), os._exit(75)))
        time.sleep(600)
    """
    alone = "from dovetail.runtime import heartbeat as h; h._SECONDS_ALONE = 1.0\n"
    script.write_text(alone + WORKER + textwrap.indent(textwrap.dedent(body), "    "))
    program = (
        "import sys; from dovetail.runtime.supervisor import Supervisor, SupervisorSettings; "
        "Supervisor(sys.argv[1:], SupervisorSettings(), print).run()"
    )
    command = [sys.executable, "-c", program, sys.executable, str(script), str(tmp_path)]
    with subprocess.Popen(command) as supervisor:
        wait_for((tmp_path / "pid").exists)
        supervisor.kill()
    wait_for((tmp_path / "asked").exists)


def test_nothing_of_a_worker_outlives_it(tmp_path: Path) -> None:
    story = """
        if life == 1:
            child = subprocess.Popen(["sleep", "600"])
            (folder / "child").write_text(str(child.pid))
            die(signal.SIGKILL)
    """
    assert supervised(tmp_path, story)[0] == 0
    child = int((tmp_path / "child").read_text())
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, 0)
        state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        assert state == "Z", "it is dead, if perhaps not buried"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_is_passed_on_and_nothing_is_restarted(
    tmp_path: Path, number: signal.Signals
) -> None:
    script = tmp_path / "main.py"
    story = """
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
        signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
        signal.signal(signal.SIGHUP, lambda *_: sys.exit(75))
        (folder / "ready").touch()
        time.sleep(600)
    """
    script.write_text(WORKER + textwrap.indent(textwrap.dedent(story), "    "))
    supervisor = (
        "import sys; from dovetail.runtime.supervisor import *; "
        "sys.exit(Supervisor(sys.argv[1:], SupervisorSettings()).run())"
    )
    command = [sys.executable, "-c", supervisor, sys.executable, str(script), str(tmp_path)]
    process = subprocess.Popen(command)
    try:
        for _ in range(300):
            if (tmp_path / "ready").exists():
                break
            time.sleep(0.1)
        process.send_signal(number)
        assert process.wait(30) == 75
    finally:
        process.kill()
    assert lives(tmp_path) == 1


def test_a_command_is_told(tmp_path: Path) -> None:
    hook = tmp_path / "hook.sh"
    hook.write_text('echo "$2" > "$1"')
    alert = f"sh {hook} {tmp_path / 'told'}"
    assert supervised(tmp_path, "if life == 1: die(signal.SIGKILL)", alert=alert)[0] == 0
    assert "crash by SIGKILL" in (tmp_path / "told").read_text()


HALT = """
    heartbeat.send(halt="Step 3: cpu:5 is at fault.", restart_helps={helps})
    heartbeat.__exit__()
    raise SystemExit(1)
"""


@pytest.mark.parametrize(("helps", "started"), [(True, 4), (False, 1)])
def test_the_sentence_of_a_halt_is_told(tmp_path: Path, helps: bool, started: int) -> None:
    """A lasting fault of a device is not met by starting again on the same device."""
    hook = tmp_path / "hook.sh"
    hook.write_text('echo "$2" >> "$1"')
    code, said = supervised(
        tmp_path, HALT.format(helps=helps), alert=f"sh {hook} {tmp_path / 'told'}"
    )
    assert (code, lives(tmp_path)) == (1, started)
    told = (tmp_path / "told").read_text().splitlines()
    assert len(told) == started
    assert all(line.endswith("Step 3: cpu:5 is at fault.") for line in told)
    assert ("would use the same device" in said[-1]) is not helps
    assert "cpu:5" not in "".join(said), "the worker has said it"


def test_a_url_is_told_and_its_failure_is_said(tmp_path: Path) -> None:
    bodies: list[Any] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            bodies.append(json.loads(self.rfile.read(length)))
            self.send_response(200 if len(bodies) == 1 else 500)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/hook"
        code, said = supervised(tmp_path, "if life < 3: die(signal.SIGKILL)", alert=url)
        server.shutdown()
    assert code == 0, "an alert never stops anything"
    assert bodies[0]["run"] == str(tmp_path)
    assert "the alert failed: HTTP Error 500" in said[-1]


@pytest.mark.parametrize("reply", [b"no HTTP\r\n", b"HTTP/1.1 abc\r\n\r\n", None])
def test_no_reply_stops_the_supervisor(reply: bytes | None) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1] if reply else "no-port"

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(reply or b"")

        if reply:
            threading.Thread(target=answer, daemon=True).start()
        assert alert(f"http://127.0.0.1:{port}/", "a message", "a folder")


def test_the_supervisor_imports_no_jax() -> None:
    program = "import sys, dovetail.runtime.supervisor; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.decode().strip() == "False"


def test_a_worker_of_the_same_command_supervises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It trains, or refuses wrong input, as without `--supervise`."""
    monkeypatch.setenv("DOVETAIL_SUPERVISOR", "127.0.0.1:1:token")
    command = ["train", "tiny-lm", "modl.width=3", "--supervise", "--run", str(tmp_path / "run")]
    monkeypatch.setattr(Supervisor, "run", lambda self: 99)
    assert main(command) == 2
    assert "modl" in capsys.readouterr().err
    monkeypatch.delenv("DOVETAIL_SUPERVISOR")
    assert main(command) == 99


def test_some_limits_are_set_and_the_others_stay() -> None:
    found = Limits.of(phases={"start": 7200, "save": 90})
    assert found.phases == {**Limits().phases, "start": 7200.0, "save": 90.0}
    beats = {0: HeartbeatRecord(time.monotonic(), time.monotonic() - 1000, "save", 5, {"index": 0})}
    assert Watchdog(found).check(beats) is not None
    assert Watchdog(Limits.of()).check(beats) is None
    assert Limits.of() == Limits()


@pytest.mark.parametrize(("step", "silence"), [(1, 5), (20, 20), (300, 60)])
def test_a_worker_may_be_silent_as_long_as_a_step(step: float, silence: float) -> None:
    assert (Limits.of(step).step, Limits.of(step).silence) == (step, silence)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"processes": 0}, "processes: expected 1 or more, got 0"),
        ({"restarts_per_cause": -1}, "restarts_per_cause: expected 0 or more, got -1"),
        ({"min_processes": 0}, "min_processes: expected 1 or more, got 0"),
        ({"spares": 10**6}, r"spares: expected 0 or more, got 1e\+06"),
        ({"grace": float("nan")}, "grace: expected 0 or more, got nan"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        SupervisorSettings(**settings)


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"step": 0.5}, "step: expected 1 or more, got 0.5"),
        ({"phases": {"save": 0}}, "phases save=0: expected 1 or more seconds, got 0"),
        ({"phases": {"lunch": 5}}, "phases lunch=5: expected a phase of start, compile"),
    ],
)
def test_limits_out_of_range_are_named(limits: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Limits.of(**limits)


@pytest.mark.parametrize(
    ("codes", "blamed"),
    [
        ([1, -9], 1),  # a peer that lost its connection fails, too
        ([None, 1], 1),
        ([75, 3], 1),
        ([-11, -9], 0),
    ],
)
def test_the_worker_that_died_first_is_blamed(codes: list[int | None], blamed: int) -> None:
    assert _failures(codes)[0][0] == blamed


def test_workers_that_stopped_are_no_failures() -> None:
    assert _failures([0, 75, None]) == []
