"""`dovetail`: reads the command line, runs a verb, and turns every outcome into an exit code.

Exit codes: 0 done, 2 the user's input was wrong, 75 stopped by a signal and resumable, 1 anything
else. Every failure is one message on standard error; DOVETAIL_TRACEBACK=1 shows the traceback.

This module imports only the standard library, so that Ctrl-C is handled before the slow imports.
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
import time
import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

# Each verb is a module of this folder: `add_arguments(parser)` declares its arguments and names its
# handler, a function from the parsed arguments to an exit code. `import` cannot name a module.
VERBS = {
    "train": "train an experiment, or continue a run",
    "generate": "generate text with a trained model",
    "evaluate": "evaluate a trained model",
    "runs": "list runs, or delete some",
    "compare": "compare runs: what differs, metrics and curves",
    "goodput": "show where the time of a run went, or simulate it at scale",
    "import": "import a model from Hugging Face files",
    "export": "export a run's model to Hugging Face files",
    "config": "show, compare and list experiments",
    "plan": "predict memory, step time and cost on a machine",
    "data": "prepare data, and look into it",
    "modularity": "measure how far a feature is spread over a code base",
    "chaos": "inject faults into real training, and check that nothing is lost",
    "doctor": "check this machine and report what is missing",
    "completion": "print the tab completion for your shell",
}
_MODULES = {"import": "importing", "export": "exporting"}

_STOPPED = 75
_SHOW_CURSOR = b"\x1b[?25h"  # a progress line hides it


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    code = _run_safely(argv)
    if argv is None:  # the process ends with it
        from dovetail.utils import set_exit_code

        set_exit_code(code)
    return code


def _run_safely(argv: Sequence[str] | None) -> int:
    """Runs the command line; every failure becomes a message and an exit code."""
    # Importing JAX makes a hundred thousand objects that all stay. Collecting garbage after every
    # 700 new ones takes longer than most of our own imports.
    gc.set_threshold(50_000, 20, 20)
    _open_closed_streams()
    try:
        with _exit_on_signals(), _plain_warnings():
            try:
                return _run(argv)
            finally:
                sys.stdout.flush()
    except KeyboardInterrupt:
        return _complain("stopped", _STOPPED)
    except BrokenPipeError:
        # The reader of our output is gone (`| head`). Python flushes again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001  # every failure ends here, in one message
        return _report_failure(error)


def _run(argv: Sequence[str] | None) -> int:
    from dovetail.utils import process_started

    words = sys.argv[1:] if argv is None else argv
    is_completion = "_ARGCOMPLETE" in os.environ
    parser = build_parser(None if is_completion else [word for word in words if word in VERBS][:1])
    if is_completion:
        from dovetail.cli.completion import complete

        complete(parser)
    arguments = _parse(parser, argv)
    arguments.argv = list(words)
    arguments.started = process_started() if argv is None else time.monotonic()
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    code: int = arguments.handler(arguments)
    return code


class Parser(argparse.ArgumentParser):
    """An argument parser that suggests the nearest name for a mistyped verb or option."""

    def error(self, message: str) -> NoReturn:
        """Prints the message without the usage, which is many lines long, and exits."""
        from dovetail.config import did_you_mean

        action, _, rest = message.partition(": invalid choice: ")
        if rest:
            name = rest.partition(" ")[0].strip("'\"")
            choices = rest.partition("choose from ")[2].rstrip(")").replace("'", "").split(", ")
            what = action.removeprefix("argument ").lower()
            message = f"there is no {what} {name!r}. {did_you_mean(name, choices)}"
        elif "arguments are required: EXPERIMENT" in message:
            message = "name an EXPERIMENT, such as tiny-lm. `dovetail config list` lists them."
        end = "" if message.endswith(("?", ".")) else "."
        self.exit(2, f"{self.prog}: {message}{end} `{self.prog} --help` explains.\n")


def build_parser(wanted: Collection[str] | None = None) -> argparse.ArgumentParser:
    """Returns the parser of all verbs; it imports no JAX.

    Args:
        wanted: the verbs whose arguments are declared, which imports their modules; None: all.
    """
    about = str(importlib.import_module("dovetail").__doc__).partition("\n")[0]
    parser = Parser(prog="dovetail", description=about)
    parser.add_argument("--version", action=_Version, help="show the version and exit")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    for name, about in VERBS.items():
        inner = verbs.add_parser(
            name, help=about, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if wanted is None or name in wanted:
            verb = importlib.import_module(f"dovetail.cli.{_MODULES.get(name, name)}")
            inner.description = verb.__doc__
            inner.set_defaults(parser=inner)
            verb.add_arguments(inner)
    return parser


class _Version(argparse.Action):
    """Prints the version; reading it imports a module that no other command needs."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Prints the version and exits."""
        print(f"dovetail {_version()}")
        parser.exit()


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("dovetail")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses; `key=value` may come before or after options, which argparse does not allow."""
    arguments, rest = parser.parse_known_args(argv)
    options = [word for word in rest if word.startswith("-")]
    if options or (rest and not hasattr(arguments, "overrides")):
        _refuse_unknown(arguments, options, rest, list(sys.argv[1:] if argv is None else argv))
    if rest:
        arguments.overrides = [*arguments.overrides, *rest]
    return arguments


def _refuse_unknown(
    arguments: argparse.Namespace, options: list[str], rest: list[str], argv: list[str]
) -> NoReturn:
    """Exits with the nearest option, or the key of the experiment that an option stands for."""
    parser: argparse.ArgumentParser = arguments.parser
    if not options:
        parser.error(f"unexpected argument {rest[0]!r}")
    from dovetail.config import nearest

    option, _, value = options[0].partition("=")
    if not value:
        value = next(iter(argv[argv.index(options[0]) + 1 :]), "") if options[0] in argv else ""
    advice = ""
    if getattr(arguments, "experiment", None) is not None and hasattr(arguments, "overrides"):
        from dovetail.cli.experiment import suggest_keys

        advice = suggest_keys(arguments.experiment, option.lstrip("-"), value)
    option_names = [name for action in parser._actions for name in action.option_strings]
    if not advice and (near := nearest(option, option_names)):
        advice = f"Did you mean {' or '.join(near)}?"
    parser.error(f"there is no option {option}. {advice}".strip())


def _report_failure(error: Exception) -> int:
    """Prints what went wrong, and returns the exit code."""
    from dovetail.config import ConfigError, Error, failed_user_line, may_pass
    from dovetail.runtime.failures import Failure, explain_failure, message_line

    failure = error if isinstance(error, Error) else explain_failure(error)
    code = 2 if isinstance(failure, ConfigError) else 1
    if isinstance(error, Error) and not isinstance(error, Failure):
        return _complain(_with_notes(error), code)
    if os.environ.get("DOVETAIL_TRACEBACK", "") not in ("", "0"):
        raise error
    hint = "(DOVETAIL_TRACEBACK=1 shows the traceback)"
    if failure is not None:
        return _complain(f"{failure} {hint}", code)
    if not isinstance(error, FloatingPointError) and (line := failed_user_line(error)):
        code = 1 if may_pass(error) else 2
        return _complain(f"{line}{'' if line.endswith('?') else '.'} {hint}", code)
    if isinstance(error, OSError | FloatingPointError):
        return _complain(f"{message_line(error)} {hint}", 1)
    return _complain(f"internal error: {_internal(error)} {hint}", 1)


def _internal(error: Exception) -> str:
    """Describes an error that nobody expected, and asks for a report."""
    from dovetail.config import imported_packages
    from dovetail.runtime.failures import message_line

    kind = type(error).__name__
    text = f"{kind}: {message_line(error)}".removesuffix(f": {kind}")
    text += "".join(f", {note}" for note in _path_notes(error))
    advice = "Please report it"
    if packages := ", ".join(sorted(imported_packages())):
        advice = (
            f"Do the components of {packages} take and return what their interfaces say? If they "
            "do, please report it"
        )
    return f"{text.rstrip('.')}. {advice}"


def _complain(message: object, code: int) -> int:
    with contextlib.suppress(OSError):  # standard error may be closed, too
        print(f"dovetail: {message}", file=sys.stderr, flush=True)
    return code


def _with_notes(error: Exception) -> str:
    return "\n  ".join([str(error), *_path_notes(error)])


def _path_notes(error: Exception) -> list[str]:
    return [note for note in getattr(error, "__notes__", []) if note.startswith("in the module")]


def _open_closed_streams() -> None:
    """Replaces streams that the shell has closed (`>&-`): Python sets them to None."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115  # stays open


@contextlib.contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Makes signals that ask to stop exit at once with code 75; training has its own handlers.

    The handler raises no exception, because one in the middle of importing compiled code can crash
    Python (seen). Files are written atomically and need no cleaning up.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asking = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    # What is ignored stays so: `nohup` ignores SIGHUP.
    numbers = [each for each in asking if signal.getsignal(each) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, _exit_now) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _exit_now(number: int, frame: object) -> None:
    with contextlib.suppress(OSError):
        os.write(2, (_SHOW_CURSOR + b"\n" if os.isatty(2) else b"") + b"dovetail: stopped\n")
    os._exit(_STOPPED)


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
