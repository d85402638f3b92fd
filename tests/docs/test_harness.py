"""The harness that runs the documents: a block that does not do what the document says fails."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs import run_document
from tests.docs.blocks import Command, DocumentError, read_blocks, read_commands
from tests.docs.readme_tree import find_problems

Run = Callable[..., None]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a document of this text in an empty folder."""

    def run(markdown: str, *, slow: bool = False) -> None:
        (tmp_path / "page.md").write_text(markdown)
        folder = tmp_path / "folder"
        folder.mkdir()
        monkeypatch.chdir(folder)
        monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
        run_document.run_document(tmp_path / "page.md", slow=slow)

    return run


def fence(language: str, text: str, comment: str = "") -> str:
    """Writes a code block, with a comment above it."""
    return f"{comment}\n```{language}\n{text}\n```\n"


# ---------------------------------------------------------------- reading


def test_blocks_know_their_line_language_and_text() -> None:
    markdown = "# Title\n\n" + fence("python", "x = 1\ny = 2") + "\nwords\n" + fence("text", "z")
    python, text = read_blocks(markdown)
    assert (python.line, python.language, python.text) == (5, "python", "x = 1\ny = 2")
    assert (text.language, text.is_run) == ("text", False)


def test_a_block_inside_a_list_loses_its_indent() -> None:
    (block,) = read_blocks("- item\n  ```python\n  if x:\n      y\n  ```\n")
    assert block.text == "if x:\n    y"


def test_a_longer_fence_may_hold_a_shorter_one() -> None:
    (block,) = read_blocks("````text\n```python\n1/0\n```\n````\n")
    assert block.text == "```python\n1/0\n```"


def test_comments_above_a_block_are_orders() -> None:
    (block,) = read_blocks(fence("sh", "dovetail x", "<!-- slow -->\n<!-- exit 2 -->\n"))
    assert (block.slow, block.exit_code) == (True, 2)


@pytest.mark.parametrize(
    ("markdown", "message"),
    [
        (fence("", "x"), "page.md:2: a code block must name its language"),
        (fence("bash", "x"), "got 'bash'"),
        (fence("python", "x", "<!-- solw -->"), "<!-- solw --> is not understood"),
        (fence("python", "x", "<!-- not run -->"), "<!-- not run: the reason -->"),
        (fence("python", "x", "<!-- not run: -->"), "<!-- not run: the reason -->"),
        ("```python\nx\n", "page.md:1: this code block is never closed"),
    ],
)
def test_a_mistake_in_the_markup_is_an_error(markdown: str, message: str) -> None:
    with pytest.raises(DocumentError) as error:
        read_blocks(markdown, "page.md")
    assert message in str(error.value)


def test_commands_are_read_with_their_output() -> None:
    text = "$ dovetail a \\\n    --b\none\ntwo\n\n$ dovetail c\n$ dovetail d"
    (block,) = read_blocks(fence("console", text))
    first, second, third = read_commands(block)
    assert first == Command(3, "dovetail a \\\n    --b", "one\ntwo\n")
    assert (second.line, second.text, second.output) == (8, "dovetail c", None)
    assert (third.text, third.output) == ("dovetail d", None)


def test_an_sh_block_without_prompts_is_a_list_of_commands() -> None:
    (block,) = read_blocks(fence("sh", "# first\nmake venv\n\nmake test"))
    assert [command.text for command in read_commands(block)] == ["make venv", "make test"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dovetail train", "no line that begins with $"),
        ("output\n$ dovetail train", "output stands before the first command"),
    ],
)
def test_a_console_block_needs_prompts(text: str, message: str) -> None:
    (block,) = read_blocks(fence("console", text))
    with pytest.raises(DocumentError) as error:
        read_commands(block)
    assert message in str(error.value)


# ---------------------------------------------------------------- running


def test_python_blocks_share_names_and_the_folder(run: Run) -> None:
    run(
        fence("python", "from pathlib import Path\nvalue = 1")
        + fence("python", "class Holder:\n    pass\nPath('left').write_text(str(value + 1))")
        + fence("console", "$ cat left\n2")
        + fence("python", "import sys\nassert sys.modules[Holder.__module__].Holder is Holder")
    )


def test_a_python_block_that_fails_is_shown_at_its_line(run: Run) -> None:
    with pytest.raises(DocumentError) as error:
        run("# Title\n" + fence("python", "x = 0\n1 / x"))
    assert "page.md:4: this block fails" in str(error.value)
    assert 'page.md", line 5' in str(error.value)
    assert "1 / x" in str(error.value)
    assert "ZeroDivisionError" in str(error.value)


@pytest.mark.parametrize("text", ["raise SystemExit(3)", "this is no Python", "assert 1 == 2"])
def test_a_python_block_cannot_slip_out(run: Run, text: str) -> None:
    with pytest.raises(DocumentError):
        run(fence("python", text))


@pytest.mark.parametrize(
    "shown",
    ["loss 2.5 after 10 steps", "loss ... after 10 steps", "loss    2.5\nafter ...", "..."],
)
def test_output_may_leave_things_open(run: Run, shown: str) -> None:
    run(fence("console", f"$ python -c \"print('loss 2.5 after 10 steps')\"\n{shown}"))


@pytest.mark.parametrize("shown", ["loss 2.4 after 10 steps", "steps ...", "loss ... after 11 ..."])
def test_other_output_than_shown_fails(run: Run, shown: str) -> None:
    with pytest.raises(DocumentError) as error:
        run(fence("console", f"$ python -c \"print('loss 2.5 after 10 steps')\"\n{shown}"))
    assert "page.md:3: $ python -c" in str(error.value)
    assert "Expected:" in str(error.value)
    assert "loss 2.5 after 10 steps" in str(error.value)


def test_the_exit_code_is_checked(run: Run) -> None:
    with pytest.raises(DocumentError) as error:
        run(fence("sh", "python -c 'print(\"the reason\"); raise SystemExit(2)'"))
    assert "exit code 2, expected 0" in str(error.value)
    assert "the reason" in str(error.value)


def test_a_failure_can_be_what_is_shown(run: Run) -> None:
    run(fence("console", "$ python -c 'raise SystemExit(\"no such\")'\nno ...", "<!-- exit 1 -->"))


def test_a_command_that_hangs_is_stopped(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_document, "SECONDS_A_COMMAND", 0.2)
    with pytest.raises(DocumentError) as error:
        run(fence("sh", "python -c 'import time; time.sleep(60)'"))
    assert "not finished after 0.2 s; mark the block <!-- slow -->" in str(error.value)


def test_make_is_not_run_but_its_targets_must_exist(run: Run) -> None:
    run(fence("sh", "make test PYTHON=python3.13  # in an environment of its own"))


def test_a_target_that_does_not_exist_fails(run: Run) -> None:
    with pytest.raises(DocumentError) as error:
        run(fence("sh", "make quickstrat"))
    assert "the Makefile has no target 'quickstrat'" in str(error.value)


def test_other_programs_must_be_marked(run: Run) -> None:
    with pytest.raises(DocumentError) as error:
        run(fence("sh", "git clone somewhere"))
    assert "mark this block <!-- not run: the reason -->" in str(error.value)


def test_marked_blocks_and_shown_languages_do_not_run(run: Run) -> None:
    run(
        fence("sh", "git clone somewhere", "<!-- not run: needs the network -->")
        + fence("text", "1 / 0")
        + fence("json", "{")
    )


def test_slow_blocks_run_only_when_asked(run: Run) -> None:
    run(fence("python", "1 / 0", "<!-- slow -->"))


def test_the_slow_run_runs_all_blocks_in_order(run: Run) -> None:
    with pytest.raises(DocumentError) as error:
        run(fence("python", "x = 0") + fence("python", "1 / x", "<!-- slow -->"), slow=True)
    assert "ZeroDivisionError" in str(error.value)


def test_the_command_line_reports_by_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "good.md").write_text(fence("python", "x = 1"))
    (tmp_path / "bad.md").write_text(fence("python", "1 / 0"))
    assert run_document.main([str(tmp_path / "good.md")]) == 0
    assert run_document.main([str(tmp_path / "bad.md")]) == 1
    assert "bad.md:3: this block fails" in capsys.readouterr().out


# ---------------------------------------------------------------- the tree


TREE = """
dovetail/
  config/           typed configs
  layers/           the layer library
    moe/            experts
      router.py     scores
    norms.py, checks.py  norms; sizes
  cli/              one file a verb
tests/              mirror the package
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with three subpackages, a left-over folder and tests."""
    for folder in ("config", "cli", "layers", "layers/moe"):
        (tmp_path / "dovetail" / folder).mkdir(parents=True)
        (tmp_path / "dovetail" / folder / "__init__.py").touch()
    for file in ("main.py", "config/text.py", "layers/norms.py", "layers/checks.py"):
        (tmp_path / "dovetail" / file).touch()
    (tmp_path / "dovetail" / "layers" / "moe" / "router.py").touch()
    (tmp_path / "dovetail" / "__pycache__").mkdir()
    (tmp_path / "tests").mkdir()
    return tmp_path


def test_a_true_tree_has_no_problems(root: Path) -> None:
    assert find_problems(fence("text", TREE.strip()), root) == []


def test_a_tree_may_be_drawn_with_branches(root: Path) -> None:
    tree = (
        "dovetail/\n├── config/  typed configs\n│   └── text.py  as text\n"
        "├── layers/  the layer library\n└── cli/  one file a verb"
    )
    assert find_problems(fence("text", tree), root) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("  cli/              one file a verb\n", "", "dovetail/cli/ is missing"),
        ("one file a verb", "", "dovetail/cli/ has no phrase"),
        ("  cli/", "  clay/", "dovetail/clay/ does not exist"),
        ("tests/", "benchmarks/", "benchmarks/ does not exist"),
        ("norms.py, checks.py", "norms.py", "dovetail/layers/checks.py is missing"),
        ("norms.py, checks.py", "norms.py, sizes.py", "dovetail/layers/sizes.py does not exist"),
        ("    moe/            experts\n", "", "dovetail/layers/moe/ is missing"),
        (
            "      router.py     scores",
            "      other.py  x",
            "dovetail/layers/moe/router.py is missing",
        ),
        ("router.py     scores", "router.py", "dovetail/layers/moe/router.py has no phrase"),
    ],
)
def test_a_false_tree_is_found_out(root: Path, old: str, new: str, problem: str) -> None:
    assert problem in find_problems(fence("text", TREE.strip().replace(old, new)), root)


def test_the_tree_must_be_there_once(root: Path) -> None:
    assert find_problems("no tree", root) == [
        "expected one text block that begins with dovetail/, found 0"
    ]
