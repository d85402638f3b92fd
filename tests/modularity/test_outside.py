"""Features of a package outside of Dovetail are measured like its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dovetail.cli import main
from dovetail.config import import_package
from dovetail.config.overrides import _modifiers
from dovetail.experiments import experiments
from dovetail.experiments.registry import _experiments
from dovetail.features import features
from dovetail.features.feature import _features
from dovetail.modularity.deletion import delete_package
from dovetail.modularity.leaks import importing_lines
from dovetail.modularity.ownership import features_of, own_experiments, owned_code, package_of
from dovetail.modularity.pairs import build_pair, trace_pair
from dovetail.modularity.snapshot import config_hashes
from dovetail.modularity.tasks import fingerprint
from tests.outside import fire_bias, hyper_connections  # noqa: F401  # registers their features

TWICE = '''
"""A feed-forward of my own, and the feature that puts it in."""

from dovetail.config import replace
from dovetail.features import feature
from dovetail.layers import BaseFeedForward, FeedForward


class Twice(FeedForward):
    """The usual feed-forward, times two."""

    def __call__(self, x_BSE):
        return 2.0 * super().__call__(x_BSE)


@feature(
    "NAME",
    kind="feed-forward",
    files=("layers/moe/",),
    builds_on=("moe",),
    needs={"dovetail.layers:BaseFeedForward": "there is nothing to double"},
)
def twice(config):
    """Doubles every feed-forward."""
    return replace(config, BaseFeedForward, Twice.Config())
'''
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Writes packages into the working folder, and forgets what they registered."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert experiments()
    assert features(), "the first use loads the package's own"

    def make(name: str, text: str = TWICE) -> str:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        (tmp_path / name / "layers.py").write_text(text.replace("NAME", name.replace("_", "-")))
        return name

    with _features.restored(), _modifiers.restored(), _experiments.restored():
        yield make


def test_an_outside_feature_owns_nothing_of_ours(package: Callable[..., str]) -> None:
    import_package(package("my_owner"))
    mine = features()["my-owner"]
    assert (package_of(mine), features_of(["my_owner"])) == ("my_owner", ["my-owner"])
    assert owned_code(mine, features()) == (), "its files are those of another package"
    moe = owned_code(features()["moe"], features())
    with _features.restored():
        del _features._things["my-owner"]
        assert moe == owned_code(features()["moe"], features())


def test_it_is_built_with_our_experiments(package: Callable[..., str]) -> None:
    import_package(package("my_built"))
    for name in ("llama2-7b", "gpt2"):
        found = build_pair(name, "my-built")
        assert (found.outcome, found.stage) == ("works", "built"), found.detail


def test_importing_lines_are_found(tmp_path: Path) -> None:
    (tmp_path / "wired.py").write_text(
        'import mine.layers\nfrom mine import a\nimport mined\n\nwords = "mine", "mine.b"\n\na()\n'
    )
    lines = importing_lines(tmp_path, "mine")
    assert [line.number for line in lines] == [1, 2, 7], "a string is no import"


def test_what_changes_without_the_package_is_counted() -> None:
    """The package is deleted by not importing it."""
    names = ["tiny-lm", "gpt2"]
    same = config_hashes(*names)
    found = delete_package("twice", "my_missing", same)
    assert (found.lines_changed, found.compared) == (0, 2)
    changed = delete_package("twice", "my_missing", same | {"gpt2": 64 * "0"})
    assert (changed.lines_changed, list(changed.changed)) == (1, ["gpt2"])


def test_results_depend_on_the_sources_of_the_package(package: Callable[..., str]) -> None:
    import_package(package("my_source"))
    first = fingerprint(("my_source",))
    assert first != fingerprint()
    file = Path("my_source/layers.py")
    file.write_text(file.read_text() + "# a comment\n")
    fingerprint.cache_clear()
    assert fingerprint(("my_source",)) == first
    file.write_text(file.read_text().replace("2.0", "3.0"))
    fingerprint.cache_clear()
    assert fingerprint(("my_source",)) != first


def test_a_model_that_does_not_decode_is_traced(
    package: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "own_input", raising=False)
    import_package("own_input")
    assert "digits-example" in experiments()
    assert "digits-example" not in own_experiments()
    assert "llama2-7b" in own_experiments()
    found = trace_pair("digits-example", "bf16")
    assert (found.outcome, found.detail) == ("works", "")


def test_a_module_alone_is_measured(package: Callable[..., str]) -> None:
    import_package(package("my_measured"))
    assert features_of(["my_measured.layers"]) == features_of(["my_measured"]) == ["my-measured"]
    assert features_of([hyper_connections.__name__]) == ["hyper-connections"]
    assert set(features_of(["tests.outside"])) >= {"fire", "hyper-connections"}


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["my_survey", hyper_connections.__name__])
def test_a_survey_of_a_package(
    package: Callable[..., str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "my_survey":
        package(name)
    argv = ["modularity", "--import", name, "--experiment", "tiny-lm", "--experiment", "gpt2"]
    assert main([*argv, "--jobs", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "experiments": 2,
        "features": 1,
        "pairs": 2,
        "not_applicable": 0,
        "built": 2,
        "traced": 2,
        "executed": 1,
        "failing": 0,
        "lines_changed": 0,
    }


def test_what_is_refused(package: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    empty = package("my_empty", "")
    assert main(["modularity", "--import", empty]) == 2
    assert "my_empty: it registers no feature" in capsys.readouterr().err
    assert main(["modularity", "--import", empty, "--write", "docs"]) == 2
    assert "leave out --import" in capsys.readouterr().err
