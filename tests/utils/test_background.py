"""Calls in the background: results, errors, and an exit that waits for nothing."""

import gc
import subprocess
import sys
import time
import weakref

import pytest

from dovetail.utils import BackgroundCall


def test_a_result_and_an_error_come_back():
    assert BackgroundCall(lambda a, b: a + b, 2, 3).result() == 5
    with pytest.raises(ZeroDivisionError):
        BackgroundCall(lambda: 1 / 0).result()


def test_it_is_known_whether_it_is_done():
    call = BackgroundCall(time.sleep, 0.3)
    assert not call.done(0.01)
    assert call.done(10)


def test_an_abandoned_call_does_not_hold_the_process():
    program = """
import time
from dovetail.utils import BackgroundCall, set_exit_code
call = BackgroundCall(time.sleep, 100)
call.abandon()
set_exit_code(75)
print("the end")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (75, "the end\n", "")


def test_without_an_exit_code_the_exit_waits_for_it():
    """A script may have caught the error because of which a call was abandoned."""
    program = """
import time
from dovetail.utils import BackgroundCall
call = BackgroundCall(lambda: (time.sleep(0.5), print("called")))
call.abandon()
print("the end")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "the end\ncalled\n", "")


def test_an_abandoned_call_is_not_kept_for_the_exit():
    """It may hold a whole run, and a notebook goes on for days."""

    class Run:
        def compile(self):
            pass

    run = Run()
    call, kept = BackgroundCall(run.compile), weakref.ref(run)
    call.abandon()
    assert call.done(10)
    del run, call
    gc.collect()
    assert kept() is None
