"""Reads the fenced code blocks of a Markdown document, with what the comments above them ask for.

A block is run according to its language:

- `python`: all such blocks of a document share one namespace, in order.
- `console` and `sh`: lines that begin with `$ ` are commands, and what stands below a command is
  the output that it must give (`...` stands for anything, runs of white space are equal). An `sh`
  block with no `$` is a list of commands.
- `text` and the data languages are only shown.

Comments right above a block may say `<!-- slow -->` (run by `make slow` only), `<!-- exit 2 -->`
(its commands end with that code) or `<!-- not run: the reason -->`. Anything else is a mistake.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

RUN_LANGUAGES = ("python", "console", "sh")
SHOWN_LANGUAGES = ("text", "diff", "ini", "json", "toml", "yaml")

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})\s*(?P<language>[^\s`]*)\s*$")
_COMMENT = re.compile(r"^\s*<!--\s*(.*?)\s*-->\s*$")
_EXIT = re.compile(r"exit (\d+)")


class DocumentError(Exception):
    """A mistake in a document, or a block that does not do what the document says."""


@dataclass(frozen=True)
class Command:
    """A shell command of a document, and the output shown below it (None where none is shown)."""

    line: int
    text: str
    output: str | None


@dataclass(frozen=True)
class Block:
    """A fenced block: its text, the number of its first line, and how it is to be run."""

    line: int
    language: str
    text: str
    slow: bool = False
    not_run: str = ""
    exit_code: int = 0

    @property
    def is_run(self) -> bool:
        """Says whether the tests run this block at all."""
        return self.language in RUN_LANGUAGES and not self.not_run


def read_blocks(markdown: str, name: str = "document") -> list[Block]:
    """Returns the fenced blocks of a document; `name` is what errors call it."""
    lines = markdown.splitlines()
    blocks, number = [], 0
    while number < len(lines):
        opening = _FENCE.match(lines[number])
        if not opening:
            number += 1
            continue
        end = _find_end(lines, number, opening, name)
        where = f"{name}:{number + 1}"
        blocks.append(_make_block(lines, number, end, opening, where))
        number = end + 1
    return blocks


def read_commands(block: Block, name: str = "document") -> list[Command]:
    """Returns the commands of a `console` or `sh` block, each with the output shown below it."""
    lines = block.text.splitlines()
    prompted = any(line.startswith("$ ") for line in lines)
    if not prompted and block.language == "console":
        raise DocumentError(f"{name}:{block.line}: a console block has no line that begins with $")
    commands: list[Command] = []
    output: list[str] = []
    numbered = iter(enumerate(lines, start=block.line))
    for number, line in numbered:
        if prompted and not line.startswith("$ "):
            if not commands and line.strip():
                raise DocumentError(f"{name}:{number}: output stands before the first command")
            output.append(line)
        elif prompted or (line.strip() and not line.startswith("#")):
            commands = _with_output(commands, output)
            output = []
            commands.append(Command(number, _whole_command(line, numbered), None))
    return _with_output(commands, output)


def _find_end(lines: list[str], start: int, opening: re.Match[str], name: str) -> int:
    fence = opening["fence"]
    for number in range(start + 1, len(lines)):
        closing = lines[number].strip()
        if closing and set(closing) == {fence[0]} and len(closing) >= len(fence):
            return number
    raise DocumentError(f"{name}:{start + 1}: this code block is never closed")


def _make_block(
    lines: list[str], start: int, end: int, opening: re.Match[str], where: str
) -> Block:
    language, indent = opening["language"], len(opening["indent"])
    if language not in (*RUN_LANGUAGES, *SHOWN_LANGUAGES):
        raise DocumentError(
            f"{where}: a code block must name its language: {', '.join(RUN_LANGUAGES)} are run, "
            f"{', '.join(SHOWN_LANGUAGES)} are not; got {language!r}"
        )
    text = "\n".join(_unindent(line, indent) for line in lines[start + 1 : end])
    slow, not_run, exit_code = False, "", 0
    for comment in _comments_above(lines, start):
        if comment == "slow":
            slow = True
        elif comment.startswith("not run:") and comment.removeprefix("not run:").strip():
            not_run = comment.removeprefix("not run:").strip()
        elif exit_with := _EXIT.fullmatch(comment):
            exit_code = int(exit_with[1])
        else:
            raise DocumentError(
                f"{where}: <!-- {comment} --> is not understood above a code block; expected "
                "<!-- slow -->, <!-- exit 2 --> or <!-- not run: the reason -->"
            )
    return Block(start + 2, language, text, slow, not_run, exit_code)


def _comments_above(lines: list[str], start: int) -> Iterator[str]:
    for line in reversed(lines[:start]):
        comment = _COMMENT.match(line)
        if comment:
            yield comment[1]
        elif line.strip():
            return


def _unindent(line: str, indent: int) -> str:
    return line[indent:] if not line[:indent].strip() else line


def _whole_command(line: str, following: Iterator[tuple[int, str]]) -> str:
    """Joins a command with the lines that it continues on after a backslash."""
    text = line.removeprefix("$ ")
    while text.endswith("\\"):
        text += "\n" + next(following, (0, ""))[1]
    return text


def _with_output(commands: list[Command], output: list[str]) -> list[Command]:
    """Gives the last command the output that was gathered for it."""
    if not any(line.strip() for line in output):
        return commands
    last = commands[-1]
    return [*commands[:-1], Command(last.line, last.text, "\n".join(output))]
