"""The guard: what it must find, and that the package itself has nothing to be found."""

from __future__ import annotations

import ast
import inspect
import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli.experiment import load_all_parts
from dovetail.config import REQUIRED, ConfigOf, Part
from dovetail.features import features
from dovetail.layers import Attention, Linear, SequenceMixer, TokenMap
from dovetail.modularity.deletion import uses
from dovetail.modularity.guard import foreign_names, grown_fields
from dovetail.modularity.handed_down import HANDED_DOWN
from dovetail.modularity.leaks import leaking_lines
from dovetail.modularity.mentions import unexplained, unneeded
from dovetail.modularity.own_files import own_files
from dovetail.modularity.store import PACKAGE
from dovetail.module import Module

ALIBI = ("features/alibi.py", "layers/positions/alibi.py")


PLANTED = """

def _planted():
    from dovetail.layers.positions.alibi import (
        Alibi,
    )

    return Alibi.Config()
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package that may be spoilt."""
    copy = tmp_path / "dovetail"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def plant(package: Path, file: str, text: str) -> None:
    with (package / file).open("a") as end:
        end.write(text)


def test_no_file_names_a_feature_that_is_not_its_own() -> None:
    assert foreign_names(features()) == []


@pytest.fixture
def _all_parts() -> None:
    load_all_parts()


@pytest.mark.usefixtures("_all_parts")
def test_no_config_grows_a_childs_field() -> None:
    assert grown_fields() == []


@pytest.mark.usefixtures("_all_parts")
def test_grown_fields_are_found() -> None:
    class Grown(Module):
        """Takes settings of its children over."""

        class Config(Module.Config["Grown"]):
            bias: bool = False
            num_heads: int = REQUIRED
            num_kv_heads: int | None = None
            attention_head_width: int | None = None
            linear: ConfigOf[TokenMap] = Linear.Config()
            attention: ConfigOf[SequenceMixer] = Attention.Config()

    Grown.__module__ = "dovetail.planted"
    assert grown_fields() == [
        "dovetail.planted:Grown.attention_head_width (of attention)",
        "dovetail.planted:Grown.bias (of linear)",
        "dovetail.planted:Grown.num_heads (of attention)",
        "dovetail.planted:Grown.num_kv_heads (of attention)",
    ]
    Grown.__module__ = "tests"


@pytest.mark.usefixtures("_all_parts")
def test_what_is_handed_down_is_there() -> None:
    names = {part.__name__ for part in subclasses(Part)}
    assert {part for parts in HANDED_DOWN.values() for part in parts} - names == set()


def test_every_mention_of_a_feature_is_explained_and_needed() -> None:
    assert unexplained(features()) == []
    assert unneeded(features()) == []


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ("use_alibi: bool = False", "use_alibi: bool = False"),
        ("def choose(kind):\n    return kind == 'alibi'", "return kind == 'alibi'"),
        ("def choose(config):\n    return config.alibi_slopes", "return config.alibi_slopes"),
    ],
)
def test_a_planted_word_is_found(package: Path, planted: str, said: str) -> None:
    plant(package, "layers/stack/transformer.py", f"\n\n{planted}\n")
    (found,) = unexplained(features(), package)
    assert found.startswith("alibi in layers/stack/transformer.py:")
    assert found.endswith(said)


def test_a_module_that_is_named_in_a_text_is_found(package: Path) -> None:
    plant(package, "trainer/loop.py", "\n_PLANTED = 'dovetail.layers.positions.alibi'\n")
    assert [line.file for line in leaking_lines(package, ALIBI)] == ["trainer/loop.py"]


def test_a_feature_may_name_only_what_it_builds_on(package: Path) -> None:
    plant(package, "features/lora.py", PLANTED)
    assert {line.file for line in leaking_lines(package, ALIBI)} == {"features/lora.py"}
    rope = own_files(features()["rope"], features())
    assert "features/rope_yarn.py" in rope
    assert "features/lora.py" not in rope


@pytest.mark.parametrize("name", features())
def test_a_features_files_are_there_and_nobody_else_needs_them(name: str) -> None:
    files = own_files(features()[name], features())
    assert [file for file in files if not (PACKAGE / file).exists()] == []
    assert leaking_lines(PACKAGE, files) == []


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
    found = foreign_names(features(), package)
    assert [str(line).partition(": ")[2] for line in found] == ['_PLANTED = "Alibi"']


def test_what_a_text_uses_is_read_from_it() -> None:
    text = "model = dovetail.layers.positions.alibi:Alibi()\n"
    assert uses(text, ALIBI)
    assert uses("a = dovetail.layers.moe.mixture:MixtureOfExperts()", ["layers/moe/"])
    assert not uses("a = dovetail.layers.moe_less:Nothing()", ["layers/moe/"])
    assert not uses(text, ["layers/positions/alib.py"])


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
