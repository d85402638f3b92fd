"""How much of a text looks like Python: the share of its lines that Python's `tokenize` accepts.

The definition: the text is cut at line ends, lines of nothing but white space are left out, white
space around each line is taken off (so indentation is not judged), and the line is given alone to
`tokenize.generate_tokens`. It passes if that neither raises nor finds a character that is no part
of the language, such as `$`.

A line that leaves a bracket or a triple quote open, or closes one from before, may be good Python
and yet fails alone. So real code does not reach 100%: of the held-out lines of Python 3.11's
standard library 86% pass under 3.11, which counts a stray closing bracket as an open one, and 90%
under 3.12 and 3.13, which let it pass. That is the ceiling. `passed_in_context` counts such lines
as passed too; there the ceiling is 99%. Prose passes both when it has no apostrophe: the measure
tells broken text from whole, not code from comments.
"""

from __future__ import annotations

import io
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass
from token import EXACT_TOKEN_TYPES

from dovetail.config import Part


@dataclass(frozen=True)
class LineReport:
    """How many lines there were, and how many passed."""

    lines: int
    passed: int
    """Accepted alone."""
    passed_in_context: int
    """Accepted alone, or but for a bracket or triple quote that other lines may open or close."""

    @property
    def fraction(self) -> float:
        """The share of lines accepted alone; 0 where there is no line."""
        return self.passed / self.lines if self.lines else 0.0

    @property
    def fraction_in_context(self) -> float:
        """The share of lines that are accepted or could be completed; 0 where there is no line."""
        return self.passed_in_context / self.lines if self.lines else 0.0


class PythonLines(Part):
    """Judges texts that were cut off at some length: the share of whole lines accepted alone."""

    def judge(self, texts: Sequence[str]) -> float:
        """Returns the share; a text's last line was cut off, so it is not judged."""
        return python_lines("\n".join(text.rpartition("\n")[0] for text in texts)).fraction


def python_lines(text: str) -> LineReport:
    """Counts the lines of a text that Python's `tokenize` accepts.

    A last line without a line end counts too; leave it out where the text was cut at some length.
    """
    lines = [stripped for line in text.split("\n") if (stripped := line.strip())]
    problems = [_problem(line) for line in lines]
    passed = problems.count("")
    unfinished = sum(_could_be_completed(problem) for problem in problems)
    return LineReport(len(lines), passed, passed + unfinished)


def _problem(line: str) -> str:
    """Returns what `tokenize` says against a line, in lower case, or nothing."""
    try:
        for token in tokenize.generate_tokens(io.StringIO(line + "\n").readline):
            if _is_stray(token):
                return f"stray {token.string!r}"
    except (tokenize.TokenError, SyntaxError) as error:
        return str(error.args[0]).lower()
    return ""


def _is_stray(token: tokenize.TokenInfo) -> bool:
    """Says whether a token is none of the language's, such as `$` or a curly quote."""
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
