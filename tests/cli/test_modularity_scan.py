"""`dovetail modularity scan`: what it prints, and what it refuses."""

import json
import subprocess
import sys

import pytest

from dovetail.cli import main
from tests.modularity.code_base import write_files

FILES = {
    "rope.py": "class Rope:\n    def __init__(self, rope_theta): ...\n",
    "models/llama.py": "from rope import Rope\nrope = Rope(1)\n",
}


@pytest.fixture
def root(tmp_path):
    return write_files(tmp_path / "code", FILES)


def test_the_text_names_places(capsys, root):
    assert main(["modularity", "scan", str(root), "--feature", "rope"]) == 0
    shown = capsys.readouterr().out
    assert "2 Python files" in shown
    assert "rope.py:2 rope_theta" in shown
    assert "models/llama.py:2 Rope" in shown


def test_json_holds_every_place_and_several_features(capsys, root):
    command = ["modularity", "scan", str(root), "--feature", "rope", "--feature", "moe", "--json"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    rope = found["features"]["rope"]
    assert rope["home"] == "rope.py"
    assert rope["places"]["constructions"] == ["models/llama.py:2 Rope"]
    assert rope["summary"]["other_files"] == 1
    assert found["features"]["moe"]["summary"]["files"] == 0
    assert found["largest_constructor"]["count"] == 1


def test_words_of_the_user(capsys, root):
    command = ["modularity", "scan", str(root), "--feature", "models", "--words", "llama,theta"]
    assert main(command) == 0
    assert "rope.py:2 rope_theta" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nowhere", "--feature", "rope"], "nowhere does not exist"),
        (["empty", "--feature", "rope"], "empty holds no Python file"),
        (["code", "--feature", "ropes"], "no built-in words for the feature 'ropes'"),
        (["code", "--feature", "rope", "--feature", "moe", "--words", "x"], "--words is for one"),
        (["code", "--feature", "rope", "--history"], "code is in no git repository"),
    ],
)
def test_bad_input_ends_in_one_message(capsys, root, monkeypatch, arguments, complaint):
    (root.parent / "empty").mkdir()
    monkeypatch.chdir(root.parent)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(root.parent.parent))
    assert main(["modularity", "scan", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("dovetail: ")
    assert complaint in captured.err
    assert len(captured.err.splitlines()) == 1


def test_it_imports_neither_jax_nor_the_code(root):
    write_files(root, {"trap.py": "raise SystemExit(3)\n"})
    program = (
        "import sys; from dovetail.cli import main; "
        f"code = main(['modularity', 'scan', {str(root)!r}, '--feature', 'rope']); "
        "sys.exit(code or ('jax' in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
