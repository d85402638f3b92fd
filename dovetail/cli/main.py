"""`dovetail`: reads the command line, runs a verb, and turns every outcome into an exit code.

Exit codes: 0 done, 2 the user's input was wrong, 75 stopped by a signal and resumable, 1 anything
else. What the world may do to a correct program (a full disk, a NaN) is told in one line, and
DOVETAIL_TRACEBACK=1 shows where; a traceback without it is a bug.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import logging
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from importlib import metadata

from dovetail.config import ConfigError

# Each verb is a module of this folder: `add_arguments(parser)` declares its arguments and names its
# handler, a function from the parsed arguments to an exit code. `import` cannot name a module.
VERBS = {
    "train": "train an experiment, or continue a run",
    "generate": "write text with a trained model",
    "import": "take a model over from other programs' files",
    "export": "write a run's model for other programs",
    "config": "show, compare and list experiments",
    "plan": "say whether it fits a machine, how fast it is and what it costs",
    "data": "prepare data",
    "modularity": "measure how far a feature is spread over a code base",
    "doctor": "look at this machine and say what is missing",
    "completion": "print the tab completion for your shell",
}
_MODULES = {"import": "importing", "export": "exporting"}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    # Importing JAX makes a hundred thousand objects that all stay. Looking among them for garbage
    # after every 700 new ones takes longer than most of our own imports.
    gc.set_threshold(50_000, 20, 20)
    parser = build_parser()
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)
    arguments = _parse(parser, argv)
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    try:
        with _leaving_on_signals(), _plain_warnings():
            code: int = arguments.handler(arguments)
            sys.stdout.flush()
        return code
    except ConfigError as error:
        return _complain(_with_notes(error), 2)
    except KeyboardInterrupt:
        return _complain("stopped", 75)
    except BrokenPipeError:
        # The reader of our output has gone (`| head`); there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (OSError, FloatingPointError) as error:
        if os.environ.get("DOVETAIL_TRACEBACK", "") not in ("", "0"):
            raise
        return _complain(f"{_one_line(error)} (DOVETAIL_TRACEBACK=1 shows the traceback)", 1)


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of all verbs; it imports no JAX."""
    parser = argparse.ArgumentParser(prog="dovetail", description=__import__("dovetail").__doc__)
    version = f"dovetail {metadata.version('dovetail')}"
    parser.add_argument("--version", action="version", version=version)
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    for name, about in VERBS.items():
        verb = importlib.import_module(f"dovetail.cli.{_MODULES.get(name, name)}")
        inner = verbs.add_parser(
            name,
            help=about,
            description=verb.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb.add_arguments(inner)
    return parser


def _parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses; `key=value` may stand before or after options, which argparse does not allow."""
    arguments, rest = parser.parse_known_args(argv)
    options = [word for word in rest if word.startswith("-")]
    if options or (rest and not hasattr(arguments, "overrides")):
        parser.error(f"unrecognized arguments: {' '.join(options or rest)}")
    if rest:
        arguments.overrides = [*arguments.overrides, *rest]
    return arguments


def _complain(message: object, code: int) -> int:
    print(f"dovetail: {message}", file=sys.stderr)
    return code


def _with_notes(error: ConfigError) -> str:
    notes = [note for note in getattr(error, "__notes__", []) if note.startswith("in the module")]
    return "\n  ".join([str(error), *notes])


def _one_line(error: OSError | FloatingPointError) -> str:
    """Says what happened; for a NaN also where, because JAX's own message names no line."""
    message = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, OSError):
        return message
    jax_folder = f"{os.sep}jax{os.sep}"
    ours = [f for f in traceback.extract_tb(error.__traceback__) if jax_folder not in f.filename]
    return f"{message.rstrip('.')}, at {ours[-1].filename}:{ours[-1].lineno}" if ours else message


@contextlib.contextmanager
def _leaving_on_signals() -> Iterator[None]:
    """Lets SIGINT and SIGTERM end at once, with code 75, what does not listen to them itself.

    An exception raised in the middle of importing compiled code can crash Python (seen), so there
    is none: whatever goes to disk is written whole or not at all, and needs no cleaning up.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.signal(number, _leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _leave(number: int, frame: object) -> None:
    os.write(2, b"dovetail: stopped\n")
    os._exit(75)


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Prints a warning as one line for people, without the source line that gave it."""
    previous = warnings.formatwarning

    def plain(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        if issubclass(category, UserWarning):
            return f"warning: {message}\n"
        return previous(message, category, filename, lineno, line)

    warnings.formatwarning = plain
    try:
        yield
    finally:
        warnings.formatwarning = previous
