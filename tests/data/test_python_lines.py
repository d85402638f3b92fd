import pytest

from dovetail.data import StandardLibrary
from dovetail.data.preparation.splits import held_out_names
from dovetail.data.python_lines import python_lines


@pytest.mark.parametrize(
    "line",
    [
        "x = 1",
        "        return self.value  # deep indentation is not judged",
        "def f(a, b):",
        "else:",
        '"""A whole docstring."""',
        "prose without marks is names in a row",
    ],
)
def test_lines_that_pass(line):
    assert python_lines(line).fraction == 1.0


@pytest.mark.parametrize(
    "line", ["it doesn't end", "x = 'open", "price: 5 $", "a ? b : c", "say “x”"]
)
def test_lines_that_fail(line):
    report = python_lines(line)
    assert (report.lines, report.passed, report.passed_in_context) == (1, 0, 0)


@pytest.mark.parametrize("line", ["call(a,", "x = [", '"""Opens a docstring', "'''"])
def test_lines_that_others_may_complete(line):
    report = python_lines(line)
    assert (report.passed, report.passed_in_context) == (0, 1)


@pytest.mark.parametrize("line", ["b)", "}", "]))"])
def test_lines_that_close_what_others_opened(line):
    # Alone, Python before 3.12 and after disagree on them.
    assert python_lines(line).passed_in_context == 1


def test_blank_lines_do_not_count():
    report = python_lines("x = 1\n\n   \ny = 'open\n\tz\n")
    assert (report.lines, report.passed) == (3, 2)
    assert python_lines("\n \n").fraction == 0.0


def test_the_ceiling_on_real_code():
    documents = {each.name: each.text for each in StandardLibrary.Config().build().documents()}
    text = "\n".join(documents[name] for name in sorted(held_out_names(documents)))
    report = python_lines(text)
    assert report.lines > 3000
    assert 0.80 < report.fraction < 0.95
    assert report.passed_in_context > 0.98 * report.lines
