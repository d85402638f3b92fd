"""The progress display: a line on a terminal, plain lines elsewhere, nothing where it is off."""

import io
import re
import time

import pytest

from dovetail.utils import Progress
from dovetail.utils import progress as module


class Terminal(io.StringIO):
    """Takes what is shown, and says that it is a terminal."""

    def isatty(self):
        return True


def show_on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Makes standard error a terminal. A fixture cannot: pytest's capture would undo it."""
    found = Terminal()
    monkeypatch.setattr("sys.stderr", found)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    return found


def shown(terminal: Terminal) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())


def test_a_terminal_shows_something_within_a_second_of_blocked_work(monkeypatch):
    terminal = show_on_terminal(monkeypatch)
    with Progress("compiling") as progress:
        progress.stage("the step")
        time.sleep(0.95)
        assert "compiling: the step" in shown(terminal)
    assert terminal.getvalue().endswith("\x1b[2K"), "the line is removed at the end"


def test_a_terminal_shows_how_far_it_is(monkeypatch):
    terminal = show_on_terminal(monkeypatch)
    monkeypatch.setattr(module, "_DELAY_SECONDS", 0.0)
    with Progress("fetching") as progress:
        progress.stage("weights", 3_000_000, "bytes")
        progress.advance(1_500_000)
        time.sleep(0.1)
        progress.say("a line that stays")
    assert "1.5 MB of 3 MB" in shown(terminal)
    assert "fetching: a line that stays" in shown(terminal)
    assert "━" in shown(terminal)


def test_quick_work_shows_nothing(capsys):
    with Progress("quick") as progress:
        progress.stage("one")
        progress.report("two", 1, 2)
    assert capsys.readouterr().err == ""


def test_elsewhere_there_are_plain_lines(capsys, monkeypatch):
    monkeypatch.setattr(module, "_DELAY_SECONDS", 0.0)
    with Progress("measuring", seconds_between_lines=0.05) as progress:
        progress.report("built", 3, 40)
        time.sleep(0.2)
    lines = capsys.readouterr().err.splitlines()
    assert "measuring: built" in lines
    assert any(line.startswith("measuring: built, 3 of 40, ") for line in lines)
    assert "\x1b" not in "".join(lines)


def test_a_line_of_ones_own_is_printed_now_and_then_and_last(capsys):
    progress = Progress(seconds_between_lines=60)
    for step in range(1, 5):
        progress.show(lambda width, step=step: f"step {step}", is_last=step == 4)
    progress.close()
    assert capsys.readouterr().err.splitlines() == ["step 1", "step 4"]


def test_it_can_be_silent(capsys, monkeypatch):
    monkeypatch.setattr(module, "_DELAY_SECONDS", 0.0)
    with Progress("silent", enabled=False) as progress:
        progress.stage("one")
        progress.show(lambda width: "line")
        progress.say("nothing")
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_a_silenced_display_shows_nothing_more(capsys, monkeypatch):
    monkeypatch.setattr(module, "_DELAY_SECONDS", 0.0)
    with Progress("fetching") as progress:
        progress.say("first")
        progress.silence()
        progress.stage("weights")
        progress.say("second")
    shown = capsys.readouterr().err
    assert "first" in shown
    assert "second" not in shown
    assert "weights" not in shown
