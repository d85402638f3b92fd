"""Explains failures of the machine, whose own messages help nobody: no device, no memory, no peer.

The command line explains every failure this way, and so do `Experiment` and `Run` from Python.
"""

from __future__ import annotations

import errno
import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from dovetail.config import ConfigError, Error

# A path that the user may not use, or that cannot exist: their input is wrong, not the machine.
_BAD_PATH = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.EROFS)
_SHOWN_LENGTH = 400  # characters of a message


class Failure(Error):
    """A failure that was not foreseen where it happened, explained; `__cause__` is the original."""


class BadPathError(Failure, ConfigError):
    """A path that cannot be used, or cannot exist."""


@contextmanager
def explained_failures() -> Iterator[None]:
    """Raises the failures that `explain_failure` explains as a `Failure`; also a decorator."""
    try:
        yield
    except Exception as error:
        if (failure := explain_failure(error)) is None:
            raise
        raise failure from error


def explain_failure(error: Exception) -> Failure | None:
    """Explains a bad path, exhausted memory, a missing backend, and a lost peer.

    Returns None for any other failure, and for an `Error`, which explains itself.
    """
    if isinstance(error, Error):
        return None
    if isinstance(error, OSError) and error.errno in _BAD_PATH and error.filename is not None:
        return BadPathError(f"{error.filename}: {error.strerror}. Choose another path.")
    if _is_out_of_memory(error):
        advice = "Try a smaller input.batch_size, --with remat, or `dovetail plan`."
        return Failure(f"out of memory: {message_line(error)}. {advice}")
    if _is_backend_failure(error):
        return Failure(f"JAX cannot use its devices: {explain_backend_failure(error)}")
    if _is_lost_peer(error):
        return Failure(f"lost another process of this run: {message_line(error)}.")
    return None


def explain_backend_failure(error: Exception) -> str:
    """Explains why JAX cannot start a backend."""
    platforms = os.environ.get("JAX_PLATFORMS")
    reason = "" if isinstance(error, AssertionError) else f"{message_line(error).rstrip('.')}. "
    if platforms:
        return (
            f"{reason}JAX_PLATFORMS is {platforms!r}: is that device here, and its plugin "
            "installed? Unset JAX_PLATFORMS to use what there is."
        )
    return reason or "no backend could be started."


def message_line(error: Exception) -> str:
    """Returns the message in one line, with the source line of a NaN, which JAX does not name."""
    message = " ".join(str(error).split()) or type(error).__name__
    if not isinstance(error, FloatingPointError):
        return message if len(message) <= _SHOWN_LENGTH else f"{message[:_SHOWN_LENGTH]}..."
    jax_folder = f"{os.sep}jax{os.sep}"
    ours = [f for f in traceback.extract_tb(error.__traceback__) if jax_folder not in f.filename]
    return f"{message.rstrip('.')}, at {ours[-1].filename}:{ours[-1].lineno}" if ours else message


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)[:1000]


def _is_backend_failure(error: Exception) -> bool:
    if isinstance(error, AssertionError):  # JAX asserts that a default backend was found
        frames = traceback.extract_tb(error.__traceback__)
        return bool(frames) and frames[-1].filename.endswith("xla_bridge.py")
    return isinstance(error, RuntimeError) and "initialize backend" in str(error)


def _is_lost_peer(error: Exception) -> bool:
    """Says whether a collective failed because another process has ended, or is cut off."""
    of_jax = type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError")
    return (
        of_jax and re.search(r"Gloo .*failed|coordination (service|agent)", str(error)) is not None
    )
