"""A metric for generated Python: the fraction of lines that Python's `tokenize` accepts.

Each line is stripped (so indentation is not judged) and passed alone to `tokenize.generate_tokens`;
blank lines are left out. A line passes if that neither raises nor yields a character outside the
language, such as `$`.

A line that opens or closes a bracket or a triple quote of other lines may be valid Python and still
fail alone. So real code does not reach 100%: of the held-out lines of Python 3.11's standard
library, 86% pass under 3.11, which rejects an unmatched closing bracket, and 90% under 3.12 and
3.13, which accept it. `passed_in_context` counts such lines as passed; there real code reaches 99%.
Prose without an apostrophe passes, too: the metric tells broken text from intact text, not code
from comments.
"""

from __future__ import annotations

import io
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass
from token import EXACT_TOKEN_TYPES

from dovetail.config import Component


@dataclass(frozen=True)
class LineReport:
    """The number of lines, and of those that passed."""

    lines: int
    passed: int
    """Accepted alone."""
    passed_in_context: int
    """Accepted alone, or if other lines open or close its bracket or triple quote."""

    @property
    def fraction(self) -> float:
        """The fraction of lines accepted alone; 0 if there are none."""
        return self.passed / self.lines if self.lines else 0.0


class PythonLines(Component):
    """Scores truncated texts by the fraction of complete lines that are accepted alone."""

    def judge(self, texts: Sequence[str]) -> float:
        """Returns the fraction; the last line of a text is truncated, so it is left out."""
        return python_lines("\n".join(text.rpartition("\n")[0] for text in texts)).fraction


def python_lines(text: str) -> LineReport:
    """Counts the lines of a text that Python's `tokenize` accepts.

    The last line counts even without a line end; remove it if the text is truncated.
    """
    lines = [stripped for line in text.split("\n") if (stripped := line.strip())]
    problems = [_problem(line) for line in lines]
    passed = problems.count("")
    unfinished = sum(_could_be_completed(problem) for problem in problems)
    return LineReport(len(lines), passed, passed + unfinished)


def _problem(line: str) -> str:
    """Returns the error of `tokenize` for a line, in lower case; empty if it is accepted."""
    try:
        for token in tokenize.generate_tokens(io.StringIO(line + "\n").readline):
            if _is_stray(token):
                return f"stray {token.string!r}"
    except (tokenize.TokenError, SyntaxError) as error:
        return str(error.args[0]).lower()
    return ""


def _is_stray(token: tokenize.TokenInfo) -> bool:
    """Says whether a token is outside the language, such as `$` or a curly quote."""
    # Python 3.12 and later report such characters as operators and names, which they are not.
    if token.type == tokenize.OP:
        return token.string not in EXACT_TOKEN_TYPES
    if token.type == tokenize.NAME:
        return not token.string.isidentifier()
    return token.type == tokenize.ERRORTOKEN


def _could_be_completed(problem: str) -> bool:
    # Python 3.11 says "EOF in multi-line statement", later ones "unexpected EOF ..." and
    # "unmatched ')'".
    pieces = ("eof in multi-line", "unmatched", "unterminated triple-quoted")
    return any(piece in problem for piece in pieces)
