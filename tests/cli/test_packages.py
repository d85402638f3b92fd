"""A user's own package: named with --import or by an entry point, used, and noted in the run."""

import json
import sys
from importlib import metadata
from pathlib import Path

import pytest

from dovetail.cli import experiment, main
from dovetail.cli.experiment import complete_modifiers
from dovetail.experiments import experiments
from dovetail.experiments.registry import _experiments
from tests.cli.test_train_and_generate import TINY

MINE = '''
"""A feed-forward of my own, and the modifier that puts it in."""


from dovetail.config import modifier
from dovetail.layers import FeedForward


class Twice(FeedForward):
    """The usual feed-forward, times a number."""

    class Config(FeedForward.Config):
        times: float = 2.0

    def __init__(self, config):
        super().__init__(config)
        self.times = config.times

    def __call__(self, x_BSE):
        return self.times * super().__call__(x_BSE)


@modifier("NAME")
def twice(config, times: float = 2.0):
    """Doubles every feed-forward."""
    layer = config.model.decoder.stack.layer
    layer.feed_forward = Twice.Config(hidden=layer.feed_forward.hidden, times=times)
    return config
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Makes a package in the working folder; its modifier has the package's name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def make(name):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(MINE.replace("NAME", name))
        return name

    return make


def test_a_package_of_ones_own_trains(package):
    name = package("my_twice")
    assert main(train_with(name)) == 0
    assert json.loads(Path("run/run.json").read_text())["imports"] == [name]
    assert f"{name}:Twice" in Path("run/config.txt").read_text()


@pytest.mark.slow
def test_a_run_with_a_package_of_ones_own_continues_and_generates(package):
    name = package("my_continued")
    assert main(train_with(name)) == 0
    assert main([*train_with(name), "--steps", "3"]) == 0
    assert main(["generate", "run", "--tokens", "3", "--import", name]) == 0


def train_with(name):
    modified = ["--import", name, "--with", f"{name}:times=3.0"]
    return ["train", "tiny-lm", *modified, *TINY, "evaluators={}", "--steps", "2", "--run", "run"]


def test_list_and_completion_know_the_modifiers(package, capsys):
    name = package("my_listed")
    assert main(["config", "list", "--import", name]) == 0
    rows = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line]
    assert [f"{name}:times=2.0", "Doubles every feed-forward."] in rows
    assert name in complete_modifiers()


def test_an_entry_point_is_imported_by_itself_and_noted(package, monkeypatch, capsys):
    name = package("my_installed")
    sys.path.insert(0, ".")
    offer(monkeypatch, name)
    argv = ["config", "show", "tiny-lm", "--with", f"{name}:times=3.0"]
    assert main(argv) == 0
    assert "feed_forward.times = 3.0" in capsys.readouterr().out
    parsed = main_parser().parse_args(argv)
    assert experiment.choose(parsed).about()["entry_points"] == [name]


def test_an_entry_point_that_fails_is_named(monkeypatch, capsys):
    offer(monkeypatch, "my_broken")
    assert main(["config", "list"]) == 2
    message = capsys.readouterr().err
    assert "entry point 'mine' of group 'dovetail'" in message
    assert "No module named 'my_broken'" in message


def offer(monkeypatch, module):
    """Pretends that an installed package has an entry point."""
    point = metadata.EntryPoint("mine", module, "dovetail")

    def entry_points(*, group):
        return [point] if group == point.group else []

    monkeypatch.setattr(metadata, "entry_points", entry_points)


def main_parser():
    from dovetail.cli.main import build_parser

    return build_parser()


def test_generate_names_the_installed_package_that_has_gone(tmp_path, capsys):
    (tmp_path / "run.json").write_text(json.dumps({"entry_points": ["gone_package"]}))
    (tmp_path / "config.txt").write_text("gone_package.parts:Thing()\n")
    assert main(["generate", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert "'gone_package.parts:Thing' is neither a registered component" in message
    assert "provides the module 'gone_package'. It is not installed here; install it." in message


RAISING = """
import json

from dovetail.config import modifier
from dovetail.experiments import experiment


@experiment("NAME-lm", "raises", tiny=None)
def mine():
    return 1 // 0


@modifier("NAME")
def changed(config):
    return json.loads("{")
"""


@pytest.mark.parametrize(
    ("argv", "line", "words"),
    [
        (["{}-lm"], 10, "ZeroDivisionError: integer division or modulo by zero"),
        (["tiny-lm", "--with", "{}"], 15, "JSONDecodeError: Expecting property name"),
    ],
)
def test_an_error_in_ones_own_code_names_its_line(
    argv, line, words, package, monkeypatch, capsys, tmp_path
):
    name = package(f"my_raising_{line}")
    file = tmp_path / name / "__init__.py"
    file.write_text(RAISING.replace("NAME", name))
    argv = ["config", "show", *[word.format(name) for word in argv], "--import", name]
    assert "tiny-lm" in experiments(), "the first use loads the package's own"
    with _experiments.restored():
        assert main(argv) == 2
        monkeypatch.setenv("DOVETAIL_TRACEBACK", "1")
        with pytest.raises((ZeroDivisionError, ValueError)):
            main(argv)
    message = capsys.readouterr().err
    assert message.startswith(f"dovetail: {file}:{line}: {words}")
    assert "DOVETAIL_TRACEBACK=1" in message
    assert "report" not in message


@pytest.mark.parametrize(
    ("error", "code"), [("ConnectionResetError(104, 'reset')", 1), ("FileNotFoundError('x')", 2)]
)
def test_an_error_that_may_pass_is_tried_again(error, code, package, capsys, tmp_path):
    """Code 1: a supervisor restarts the run, as after an outage of a network disk."""
    name = package(f"my_network_{code}")
    text = RAISING.replace("NAME", name).replace("return 1 // 0", f"raise {error}")
    (tmp_path / name / "__init__.py").write_text(text)
    assert "tiny-lm" in experiments(), "the first use loads the package's own"
    with _experiments.restored():
        assert main(["config", "show", f"{name}-lm", "--import", name]) == code
    assert "Traceback" not in capsys.readouterr().err


def test_a_bug_that_ones_own_code_meets_is_still_a_bug(package, monkeypatch, capsys):
    name = package("my_victim")
    monkeypatch.setattr("dovetail.layers.FeedForward.Config.__init__", lambda *_, **__: 1 // 0)
    assert main(["config", "show", "tiny-lm", "--import", name, "--with", name]) == 1
    assert "internal error: ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        ("self.times * super", "self.tims * super", ":20: AttributeError: Twice has no 'tims'"),
        (
            "return self.times",
            "self.times",
            "Twice.__call__ returned None. Does it end with `return`?\n  in the module decoder/",
        ),
        (
            "super().__call__(x_BSE)",
            "super().__call__(x_BSE)[..., :3]",
            ", 3), expected the shape of its input, (",
        ),
    ],
    ids=["a name", "no result", "a shape"],
)
def test_a_mistake_in_a_layer_of_ones_own_is_located(
    right, wrong, words, package, capsys, tmp_path, request
):
    """It is no bug of Dovetail, and a supervisor need not try again."""
    name = package("my_" + request.node.callspec.id.replace(" ", "_"))
    text = MINE.replace("NAME", name).replace(right, wrong)
    (tmp_path / name / "__init__.py").write_text(text)
    assert main(train_with(name)) == 2
    message = capsys.readouterr().err
    assert words in message
    assert "Twice" in message
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("my_import", "my_import.py:2: ModuleNotFoundError: No module named 'nonesuch'."),
        ("./my_import.py", "For a file, start in its folder and pass my_import."),
        ("my_impart", "No module named 'my_impart'. Is it installed, or in the folder"),
    ],
)
def test_an_import_that_fails_says_where(name, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("my_import.py").write_text("import json\nimport nonesuch\n")
    assert main(["config", "show", "tiny-lm", "--import", name]) == 2
    assert words in capsys.readouterr().err


def test_a_loop_of_ones_own_without_an_outcome_is_told(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("dovetail.trainer.Trainer.train", lambda *_, **__: None)
    argv = ["train", "tiny-lm", *TINY, "evaluators={}", "--run", str(tmp_path / "run")]
    assert main(argv) == 2
    assert "Trainer.train: expected an Outcome, got None." in capsys.readouterr().err
