"""Configs of functions and classes that know nothing of configs, and their names in text."""

from __future__ import annotations

import dataclasses
import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail.config import (
    REQUIRED,
    Component,
    Config,
    ConfigError,
    apply_overrides,
    config_for,
    from_text,
    import_package,
    register_function,
    to_text,
    value_at,
)
from dovetail.config.functions import FunctionConfig
from tests.config.components import FeedForward, Linear, Model, double

FOREIGN = (object(),)


def clash(set: int, path: str, build: Any = None, clone: float = 0.5) -> tuple[Any, ...]:
    return (set, path, build, clone)


def named_self(self: int, name: int = 0, value: int = 0) -> int:
    return self + name + value


def positional(first: int, /, second: int, *rest: Any, last: int = 9) -> tuple[Any, ...]:
    return (first, second, *rest, last)


def keywords(width: int = 1, **options: Any) -> dict[str, Any]:
    return {"width": width, **options}


def odd_default(rate: float = None, hook: Any = print, table: Any = FOREIGN) -> Any:  # type: ignore[assignment]  # noqa: RUF013
    return rate


def nested(items: Any, one: float = 1.0) -> Any:
    return items, one


class Point:
    def __init__(self, x: int, y: int = 2) -> None:
        self.x, self.y = x, y


@dataclasses.dataclass
class Record:
    size: int
    tag: str = "none"


def makes_point(x: int) -> Point:
    return Point(x)


class TestCalls:
    def test_parameters_are_fields_and_build_calls(self) -> None:
        config = config_for(makes_point, x=3)
        assert config.build().x == 3
        assert type(config).builds() is Point
        with pytest.raises(ConfigError, match=r"^x: expected int or a config, got 'three' \(str\)"):
            config.set(x="three")

    @pytest.mark.parametrize("made", [config_for(Point, x=1), config_for(Record, size=1)])
    def test_classes_are_built(self, made: Config[Any]) -> None:
        assert isinstance(made.build(), Point | Record)
        assert from_text(to_text(made)) == made

    def test_an_unknown_argument_names_the_nearest_and_the_function(self) -> None:
        with pytest.raises(ConfigError) as caught:
            config_for(makes_point, z=3)
        assert str(caught.value).startswith(
            "z: tests.config.test_functions:makes_point has no field 'z'. "
        )

    def test_missing_arguments_are_listed(self) -> None:
        assert value_at(config_for(clash), "set") is REQUIRED
        with pytest.raises(ConfigError, match=r"clash cannot be built. .* not set: set, path\."):
            config_for(clash).build()

    def test_parameters_named_like_methods_work(self) -> None:
        config: Any = config_for(clash, set=3, path="p")
        config = config.clone(build=[1]).set(clone=2.0)
        assert config.build() == (3, "p", [1], 2.0)
        assert from_text(to_text(config)) == config
        assert apply_overrides(config, ["set=5"]).build()[0] == 5
        assert value_at(config, "path") == "p"
        with pytest.raises(ConfigError, match=r"set: 'set' is also a method .* \.set\(set=...\)"):
            config.set = 4
        assert config_for(named_self, self=1, name=2, value=3).build() == 6

    def test_positional_only_and_variable_arguments(self) -> None:
        assert config_for(positional, first=1, second=2).build() == (1, 2, 9)
        config = config_for(
            positional, first=1, second=2, rest=(3, Linear.Config(features=1)), last=4
        )
        assert config.build()[:3] == (1, 2, 3)
        assert isinstance(config.build()[3], Linear)
        assert from_text(to_text(config)) == config

    def test_keyword_arguments_are_stored_as_a_dict(self) -> None:
        config = config_for(keywords, width=2, colour="red", children=[Linear.Config(features=1)])
        built = config.build()
        assert (built["width"], built["colour"]) == (2, "red")
        assert isinstance(built["children"][0], Linear)
        assert from_text(to_text(config)) == config
        assert apply_overrides(config, ["options.colour=blue"]).build()["colour"] == "blue"
        assert config_for(keywords, options={"a": 1}).build() == {"width": 1, "a": 1}

    def test_nested_configs_are_built_wherever_they_stand(self) -> None:
        inner = config_for(double, value=2)
        items = {"a": [inner, 1], "b": (inner,)}
        assert config_for(nested, items=items, one=inner).build() == ({"a": [4, 1], "b": (4,)}, 4)

    def test_strange_defaults_are_left_to_the_function(self) -> None:
        config = config_for(odd_default)
        assert config.clone().build() is None
        assert config.clone(rate=0.5).build() == 0.5
        assert to_text(config) == "tests.config.test_functions:odd_default()\n"

    def test_an_error_inside_an_argument_has_its_path(self) -> None:
        config = Model.Config(anything=config_for(nested, items=[FeedForward.Config()]))
        with pytest.raises(ConfigError, match=r"^anything.items.0.width: expected int, got 'x'"):
            value_at(config, "anything.items.0").set(width="x")

    def test_a_function_may_stand_where_a_class_is_wanted_if_it_says_so(self) -> None:
        class Holder(Component):
            class Config(Component.Config["Holder"]):
                point: Any = REQUIRED

        assert Holder.Config(point=config_for(makes_point, x=1)).point.build().x == 1

    def test_components_have_configs_of_their_own(self) -> None:
        for wrong in (Linear, Linear.Config()):
            with pytest.raises(ConfigError, match="has one: use it instead"):
                config_for(wrong)  # type: ignore[arg-type]

    def test_a_built_in_without_a_signature_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="builtins:max has no signature"):
            config_for(max)

    @pytest.mark.parametrize("function", [lambda: 1, functools.partial(double, 1)])
    def test_nameless_functions_are_refused(self, function: Any) -> None:
        with pytest.raises(ConfigError, match="has no name that text could refer to"):
            config_for(function)


class TestNames:
    def test_a_public_name_stands_for_a_function_from_a_private_module(self) -> None:
        import optax

        assert register_function("optax:adamw") is optax.adamw
        config = config_for(optax.adamw, learning_rate=0.1)
        assert to_text(config) == "optax:adamw()\nlearning_rate = 0.1\n"
        assert from_text(to_text(config)) == config
        assert callable(config.build().update)
        with pytest.raises(ConfigError, match=r"optax:adamw has no field 'learnin_rate'. Did"):
            config_for(optax.adamw, learnin_rate=1.0)

    def test_an_unlisted_function_from_a_private_module_gets_advice(self) -> None:
        import optax

        with pytest.raises(ConfigError, match=r'register_function\("optax:apply_if_finite"\)'):
            config_for(optax.apply_if_finite)

    def test_variable_arguments_of_third_parties(self) -> None:
        import optax

        for name in ("chain", "scale", "clip_by_global_norm"):
            register_function(f"optax:{name}")
        parts = (config_for(optax.clip_by_global_norm, max_norm=1.0), config_for(optax.scale))
        config = config_for(optax.chain, args=parts)
        config = apply_overrides(config, ["args.1.step_size=-0.1"])
        assert from_text(to_text(config)) == config
        assert callable(config.build().update)

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("optax", "expected a public name 'module:function'"),
            (":adamw", "expected a public name"),
            ("json.decoder:_private", "expected a public name"),
            ("optax._src.alias:adamw", "expected a public name"),
            ("no_such_module:f", "No module named 'no_such_module'"),
            ("json:nothing", "has no attribute 'nothing'"),
            ("math:pi", "which cannot be called"),
        ],
    )
    def test_names_that_cannot_be_registered(self, name: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            register_function(name)

    def test_the_first_public_name_stays(self) -> None:
        register_function("json:dumps")
        register_function("json.encoder:JSONEncoder.encode")
        register_function("json:JSONEncoder.encode")
        import json

        assert "json.encoder:JSONEncoder.encode" in to_text(
            FeedForward.Config(activation=json.JSONEncoder.encode)
        )

    def test_a_function_that_is_defined_again_is_called_anew(self) -> None:
        def remade(x: int = 1) -> int:
            return x

        def again(y: int = 2) -> int:
            return y

        for function in (remade, again):
            function.__module__, function.__qualname__ = "tests.remade", "remade"
            register_function(function)
            assert config_for(function).build() == (1 if function is remade else 2)
        assert config_for(again, y=3).build() == 3

    def test_function_configs_have_no_fields_of_their_own_class(self) -> None:
        assert FunctionConfig.fields() == {}


PACKAGE = """
import os
from os import system
from dovetail.config import Component

def activation(x): return x
def _hidden(x): return x
class Layer(Component): pass
"""


class TestUserPackages:
    @pytest.fixture
    def package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        folder = tmp_path / "mine_for_tests"
        folder.mkdir()
        (folder / "__init__.py").write_text("from mine_for_tests import parts\n")
        (folder / "parts.py").write_text(PACKAGE)
        monkeypatch.syspath_prepend(str(tmp_path))
        return "mine_for_tests"

    def test_known_after_import_and_not_before(self, package: str) -> None:
        text = (
            "tests.config.components:FeedForward()\nactivation = mine_for_tests.parts:activation\n"
        )
        with pytest.raises(ConfigError, match="name the package with --import"):
            from_text(text)
        import_package(package)
        config: Any = from_text(text)
        assert config.activation(3) == 3
        assert to_text(config) == text
        assert from_text("mine_for_tests.parts:Layer()")
        assert config_for(config.activation, x=2).build() == 2
        for name in ("os.system", "system", "_hidden", "nothing", "os"):
            with pytest.raises(ConfigError, match="is neither a registered component"):
                from_text(f"mine_for_tests.parts:{name}()")

    def test_a_missing_package_is_a_clear_error(self) -> None:
        with pytest.raises(ConfigError, match=r"--import nowhere_at_all: No module named"):
            import_package("nowhere_at_all")

    def test_text_of_another_process_reads_after_import(self, package: str, tmp_path: Path) -> None:
        script = (
            "from dovetail.config import import_package, from_text\n"
            f"import tests.config.components; import_package({package!r})\n"
            "text = 'tests.config.components:FeedForward()\\n"
            "activation = mine_for_tests.parts:activation'\n"
            "print(from_text(text).activation.__name__)"
        )
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            env={"PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}"},
            check=False,
        )
        assert done.stdout == "activation\n", done.stderr
