"""Runs the code blocks of one Markdown document, in order, in the current folder.

    python -m tests.docs.run_document README.md [--slow]

The tests start this in a process and an empty folder of its own, one a document, so that what a
document registers, writes or breaks reaches nothing else. It exits 0 where every block did what the
document says; otherwise it prints the document's line and what happened. Without --slow the blocks
marked slow are left out; with it all are run, because a slow block may use what came before.
"""

import argparse
import doctest
import itertools
import os
import re
import signal
import subprocess
import sys
import traceback
import types
import warnings
from pathlib import Path

from tests.docs.blocks import Block, Command, DocumentError, read_blocks, read_commands

ROOT = Path(__file__).resolve().parents[2]
SECONDS_A_COMMAND = 90
SECONDS_A_SLOW_COMMAND = 1800
RUN_PROGRAMS = ("dovetail", "python", "cat", "head", "ls", "tail")

_ASSIGNMENT = re.compile(r"\w+=\S*")
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LOADING = re.compile(r"^\S.*: loading\n", re.MULTILINE)  # a terminal removes this line
_MATCHING = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("document", type=Path)
    parser.add_argument("--slow", action="store_true", help="run the blocks marked slow, too")
    options = parser.parse_args(arguments)
    # A warning that our own code causes is a mistake in the document as it is in a test.
    warnings.filterwarnings("error", module=r"dovetail(\.|$)")
    try:
        run_document(options.document, slow=options.slow)
    except DocumentError as error:
        print(error)
        return 1
    return 0


def run_document(document: Path, *, slow: bool) -> None:
    """Runs the blocks of a document in the current folder; raises DocumentError where one fails."""
    name = document.name
    # A module that Python knows: the types of a document's classes are looked up there.
    module = types.ModuleType(document.stem.lower().replace("-", "_") + "_document")
    module.__file__ = str(document)
    sys.modules[module.__name__] = module
    for block in read_blocks(document.read_text(encoding="utf-8"), name):
        if not block.is_run or (block.slow and not slow):
            continue
        if block.language == "python":
            run_python(block, document, module)
        else:
            for command in read_commands(block, name):
                run_command(command, block, name)


def run_python(block: Block, document: Path, module: types.ModuleType) -> None:
    """Runs a Python block; its traceback shows the document's own lines."""
    source = "\n" * (block.line - 1) + block.text
    try:
        exec(compile(source, str(document), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        # The frames of this runner say nothing to the reader of a document.
        shown = "".join(traceback.format_exception(error, limit=-10))
        raise DocumentError(f"{document.name}:{block.line}: this block fails\n{shown}") from error


def run_command(command: Command, block: Block, name: str) -> None:
    """Runs one command, or checks its target where it is make's; compares exit code and output."""
    where = f"{name}:{command.line}: $ {command.text}"
    program, *words = [w for w in command.text.split() if not _ASSIGNMENT.fullmatch(w)] or [""]
    if program == "make":
        check_targets(words, where)
        return
    if program not in RUN_PROGRAMS:
        raise DocumentError(
            f"{where}\nthe tests run only {', '.join(RUN_PROGRAMS)} and check the targets of make; "
            "mark this block <!-- not run: the reason -->"
        )
    seconds = SECONDS_A_SLOW_COMMAND if block.slow else SECONDS_A_COMMAND
    code, output = run_shell(command.text, seconds, where)
    if code != block.exit_code:
        raise DocumentError(f"{where}\nexit code {code}, expected {block.exit_code}\n{output}")
    if command.output is not None:
        compare(command.output, output, where)


def check_targets(words: list[str], where: str) -> None:
    """Makes sure that the Makefile has each target that a command names."""
    known = re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for word in itertools.takewhile(lambda word: not word.startswith("#"), words):
        if not word.startswith("-") and word not in known:
            raise DocumentError(f"{where}\nthe Makefile has no target {word!r}: {', '.join(known)}")


def run_shell(text: str, seconds: float, where: str) -> tuple[int, str]:
    """Runs a command in a shell and returns its exit code and all that it printed."""
    with subprocess.Popen(
        ["/bin/sh", "-c", text],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            os.killpg(process.pid, signal.SIGKILL)
            raise DocumentError(
                f"{where}\nnot finished after {seconds} s; mark the block <!-- slow -->"
            ) from error
    return process.returncode, _LOADING.sub("", _ESCAPE.sub("", output))


def compare(expected: str, output: str, where: str) -> None:
    """Raises where the output is not the expected one, `...` standing for anything."""
    checker = doctest.OutputChecker()
    expected, output = expected.strip() + "\n", output.strip() + "\n"
    if not checker.check_output(expected, output, _MATCHING):
        difference = checker.output_difference(doctest.Example(where, expected), output, _MATCHING)
        raise DocumentError(f"{where}\n{difference}")


if __name__ == "__main__":
    sys.exit(main())
