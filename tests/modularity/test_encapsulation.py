"""Encapsulation: planted leaks are found, and the package has none."""

from __future__ import annotations

import ast
import inspect
import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest

from dovetail.config import REQUIRED, Component, ConfigOf
from dovetail.features import features
from dovetail.layers import Attention, Linear, SequenceMixer, TokenMap
from dovetail.modularity.deletion import uses
from dovetail.modularity.leaks import leaking_lines
from dovetail.modularity.mentions import unexplained_mentions, unused_allowances
from dovetail.modularity.ownership import definitions, delete_code, owned_code, with_emptied_files
from dovetail.modularity.tasks import PACKAGE
from dovetail.module import Module
from dovetail.run import load_all_components
from tests.modularity.encapsulation import SHARED_FIELDS, flattened_fields, foreign_references

ALIBI = ("features/positions/encodings.py:alibi", "layers/positions/alibi.py")


PLANTED = """

def _planted():
    from dovetail.layers.positions.alibi import (
        Alibi,
    )

    return Alibi.Config()
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package to plant leaks in."""
    copy = tmp_path / "dovetail"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def plant(package: Path, file: str, text: str) -> None:
    with (package / file).open("a") as end:
        end.write(text)


def test_no_code_names_the_classes_of_a_feature() -> None:
    assert foreign_references(features()) == []


@pytest.fixture
def _all_parts() -> None:
    load_all_components()


@pytest.mark.usefixtures("_all_parts")
def test_no_config_flattens_a_child() -> None:
    assert flattened_fields() == []


@pytest.mark.usefixtures("_all_parts")
def test_flattened_fields_are_found() -> None:
    class Flattened(Module):
        """Flattens the configs of its children."""

        class Config(Module.Config["Flattened"]):
            bias: bool = False
            num_heads: int = REQUIRED
            num_kv_heads: int | None = None
            attention_head_width: int | None = None
            linear: ConfigOf[TokenMap] = Linear.Config()
            attention: ConfigOf[SequenceMixer] = Attention.Config()

    Flattened.__module__ = "dovetail.planted"
    assert flattened_fields() == [
        "dovetail.planted:Flattened.attention_head_width (of attention)",
        "dovetail.planted:Flattened.bias (of linear)",
        "dovetail.planted:Flattened.num_heads (of attention)",
        "dovetail.planted:Flattened.num_kv_heads (of attention)",
    ]
    Flattened.__module__ = "tests"


@pytest.mark.usefixtures("_all_parts")
def test_shared_fields_name_components() -> None:
    names = {part.__name__ for part in subclasses(Component)}
    assert {part for parts in SHARED_FIELDS.values() for part in parts} - names == set()


def test_every_mention_of_a_feature_is_allowed() -> None:
    assert unexplained_mentions(features()) == []
    assert unused_allowances(features()) == []


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ("use_alibi: bool = False", "use_alibi: bool = False"),
        ("def choose(kind):\n    return kind == 'alibi'", "return kind == 'alibi'"),
        ("def choose(config):\n    return config.alibi_slopes", "return config.alibi_slopes"),
    ],
)
def test_a_planted_word_is_found(package: Path, planted: str, said: str) -> None:
    plant(package, "layers/stack/blocks.py", f"\n\n{planted}\n")
    (found,) = unexplained_mentions(features(), package)
    assert found.startswith("alibi in layers/stack/blocks.py:")
    assert found.endswith(said)


def test_a_module_that_is_named_in_a_text_is_found(package: Path) -> None:
    plant(package, "trainer/loop.py", "\n_PLANTED = 'dovetail.layers.positions.alibi'\n")
    assert [line.file for line in leaking_lines(package, ALIBI)] == ["trainer/loop.py"]


def test_a_feature_may_name_only_what_it_builds_on(package: Path) -> None:
    plant(package, "features/fine_tuning/adapters.py", PLANTED)
    assert {line.file for line in leaking_lines(package, ALIBI)} == {
        "features/fine_tuning/adapters.py"
    }
    rope = owned_code(features()["rope"], features())
    assert "features/positions/rope_scaling.py:yarn_scaling" in rope
    assert "features/fine_tuning/adapters.py:lora" not in rope


def is_there(code: str) -> bool:
    file, _, name = code.partition(":")
    path = PACKAGE / file
    return path.exists() and (not name or name in definitions(path.read_text()))


def test_definitions_are_deleted_alone_and_empty_files_go(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import os\n\n\n@one\ndef f():\n    pass\n\n\nclass G: ...\n")
    (tmp_path / "b.py").write_text("def _h(): ...\n\n\ndef k(): ...\n")
    (tmp_path / "c").mkdir()
    owned = ("a.py:f", "b.py:k", "c/", "gone.py")
    assert with_emptied_files(tmp_path, owned) == ("a.py:f", "b.py", "c/", "gone.py")
    delete_code(tmp_path, owned)
    assert [path.name for path in tmp_path.iterdir()] == ["a.py"]
    assert definitions((tmp_path / "a.py").read_text()).keys() == {"G"}


def test_a_use_in_the_same_file_is_a_leak(package: Path) -> None:
    plant(package, "features/positions/encodings.py", "\n_PLANTED = (rope, alibi)\n")
    assert [line.text for line in leaking_lines(package, ALIBI)] == ["_PLANTED = (rope, alibi)"]


@pytest.mark.parametrize("name", features())
def test_the_code_of_a_feature_exists_and_nobody_else_names_it(name: str) -> None:
    owned = owned_code(features()[name], features())
    assert [code for code in owned if not is_there(code)] == []
    assert leaking_lines(PACKAGE, owned) == []


def test_a_planted_leak_is_found_with_every_line(package: Path) -> None:
    assert leaking_lines(package, ALIBI) == []
    plant(package, "trainer/loop.py", PLANTED)
    found = leaking_lines(package, ALIBI)
    assert [(line.file, line.text) for line in found] == [
        ("trainer/loop.py", "from dovetail.layers.positions.alibi import ("),
        ("trainer/loop.py", "Alibi,"),
        ("trainer/loop.py", ")"),
        ("trainer/loop.py", "return Alibi.Config()"),
    ]


def test_a_planted_name_is_found(package: Path) -> None:
    plant(package, "trainer/loop.py", '\n_PLANTED = "Alibi"\n')
    found = foreign_references(features(), package)
    assert [str(line).partition(": ")[2] for line in found] == ['_PLANTED = "Alibi"']


def test_what_a_text_uses_is_read_from_it() -> None:
    text = "model = dovetail.layers:Alibi()\n"
    assert uses(text, ALIBI)
    assert uses("a = dovetail.layers:MixtureOfExperts()", ["layers/moe/"])
    assert uses("a = dovetail.layers:LayerNorm()", ["layers/norms.py:LayerNorm"])
    assert not uses("a = dovetail.layers:RMSNorm()", ["layers/norms.py:LayerNorm"])
    assert not uses("a = dovetail.models:Alibi()", ALIBI)


@pytest.mark.parametrize("name", features())
def test_a_modifier_has_at_most_ten_lines(name: str) -> None:
    source = textwrap.dedent(inspect.getsource(features()[name].unchecked))
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    body = function.body[1:]  # without the docstring
    lines = source.splitlines()[body[0].lineno - 1 : body[-1].end_lineno]
    assert len([line for line in lines if line.strip() and "#" not in line.lstrip()[:1]]) <= 10


def subclasses(part: type[Any]) -> set[type[Any]]:
    return {found for child in part.__subclasses__() for found in {child, *subclasses(child)}}
