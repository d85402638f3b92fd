"""Which text is taken of a record."""

import re

import pytest

from dovetail.config import ConfigError
from dovetail.data.sources.text_field import NoTextError, TextField

RECORD = {
    "title": "T",
    "page": {"body": "B", "n": 3},
    "a.b": "dotted",
    "none": None,
    "list": [],
    "half": "\ud800",
    "bytes": b"\xff",
}


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("title", "T"),
        ("page.body", "B"),
        ("a.b", "dotted"),
        ("{title}\n\n{page.body}.", "T\n\nB."),
        ("{{{title}}}", "{T}"),
    ],
)
def test_a_text(field: str, expected: str) -> None:
    assert TextField(field).text(RECORD) == expected


def test_the_default_is_text_or_content() -> None:
    assert TextField("").text({"content": "c", "text": "t"}) == "t"
    assert TextField("").text({"content": "c"}) == "c"


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        ("", "no column 'text' or 'content'; it has 'title', 'page'"),
        ("body", "no column 'body'; it has 'title'"),
        ("page.x", "no column 'page.x'"),
        ("title.x", "no column 'title.x'"),
        ("page", "column 'page' is an object, not text"),
        ("page.n", "column 'page.n' is a number, not text"),
        ("none", "column 'none' is null, not text"),
        ("list", "column 'list' is a list, not text"),
        ("bytes", "column 'bytes' is not UTF-8 text"),
        ("half", "half of a surrogate pair"),
        ("{title} {none}", "column 'none' is null"),
    ],
)
def test_no_text(field: str, problem: str) -> None:
    with pytest.raises(NoTextError, match=re.escape(problem)):
        TextField(field).text(RECORD)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("{title", "x: '{title' is not a template: expected '}'"),
        ("title}", "x: 'title}' is not a template: Single '}'"),
        ("{}", "a placeholder that is not the name of a column alone"),
        ("{title!r}", "a placeholder that is not the name of a column alone"),
        ("{title:>5}", "a placeholder that is not the name of a column alone"),
        ("{{title}}", "names no column. Write for example {title}"),
    ],
)
def test_a_template_that_is_none(field: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        TextField(field, "x")
