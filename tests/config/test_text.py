"""Config text: what it looks like, that it reads back, and that nobody can break the reader."""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys
from typing import Any

import pytest

from dovetail.config import (
    REQUIRED,
    Component,
    ConfigError,
    all_values,
    config_for,
    diff,
    from_text,
    json_values,
    to_text,
)
from tests.config.components import (
    FeedForward,
    Linear,
    Mixture,
    Model,
    Simple,
    double,
    tree,
    triple,
    without_address,
)

HEAD = "tests.config.components:Model()\n"


class Nameless(Component):
    class Config(Component.Config["Nameless"]):
        function: Any = lambda x: x


def test_defaults_of_a_component_that_one_side_lacks_are_marked() -> None:
    left = Model.Config(layer=FeedForward.Config(width=5))
    right = Model.Config(layer=Mixture.Config(expert=Linear.Config(features=3)))
    by_default = {each.path: each.by_default for each in diff(left, right)}
    assert by_default == {
        "layer": False,
        "layer.width": False,
        "layer.rate": True,
        "layer.activation": True,
        "layer.up": True,
        "layer.up.bias": True,
        "layer.up.features": True,
        "layer.experts": True,
        "layer.expert": False,
        "layer.expert.features": False,
        "layer.expert.bias": True,
    }


class TestJsonValues:
    def test_plain_values_keep_their_types(self) -> None:
        config = Model.Config(
            scale=0.5, weights={"a": 1.0}, table={3: "c"}, anything=[(True, None)]
        )
        values = json_values(config)
        wanted = {"steps": 10, "scale": 0.5, "note": None, "name": "model", "shape": [1, 2]}
        wanted |= {"weights": {"a": 1.0}, "table": {"3": "c"}, "anything": [[True, None]]}
        assert {path: values[path] for path in wanted} == wanted
        assert json.loads(json.dumps(values)) == values

    def test_what_json_lacks_is_text(self) -> None:
        config = Model.Config(scale=math.inf, layers=[Linear.Config()], functions=[double])
        values = json_values(config)
        assert values["scale"] == "inf"
        assert values["layers"] == "list(1)"
        assert values["layers.0"] == "tests.config.components:Linear()"
        assert values["layers.0.features"] == "REQUIRED"
        assert values["functions.0"] == "tests.config.components:double"
        json.dumps(values, allow_nan=False)


class TestWriting:
    def test_defaults_are_left_out_and_lines_are_sorted(self) -> None:
        config = Model.Config(
            steps=3,
            name="a = b",
            layers=[Linear.Config() for _ in range(11)],
            layer=FeedForward.Config(width=8, up=Linear.Config(bias=True), activation=triple),
            functions=[double],
            anything=config_for(double, value=1.0),
        )
        numbered = "".join(f"layers.{i} = tests.config.components:Linear()\n" for i in range(11))
        assert to_text(config) == (
            HEAD + "anything = tests.config.components:double()\n"
            "anything.value = 1.0\n"
            "functions = list(1)\n"
            "functions.0 = tests.config.components:double\n"
            "layer.activation = tests.config.components:triple\n"
            "layer.up.bias = True\n"
            "layer.width = 8\n"
            "layers = list(11)\n" + numbered + "name = 'a = b'\n"
            "steps = 3\n"
        )

    def test_equal_configs_have_equal_text(self) -> None:
        one = Model.Config(weights={"b": 1.0, "a": 2.0}, table={10: "x", 9: "y"})
        two = Model.Config(weights={"a": 2.0, "b": 1.0}, table={9: "y", 10: "x"})
        assert to_text(one) == to_text(two)
        assert "table = {9: 'y', 10: 'x'}" in to_text(one)

    def test_text_does_not_depend_on_where_a_config_stands(self) -> None:
        assert to_text(tree().layers[0]) == "tests.config.components:FeedForward()\nwidth = 8\n"

    def test_all_values_has_the_defaults_and_reads_back(self) -> None:
        values = all_values(tree())
        assert values["layer.up.features"] == "REQUIRED"
        head, *lines = [f"{path} = {value}" for path, value in values.items()]
        assert from_text("\n".join([head.removeprefix(" = "), *lines])) == tree()

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (lambda x: x, r"<lambda> at .* has no name that text could refer to \(it is a lambda"),
            (functools.partial(double, 1), "to fix arguments, use config_for"),
            ("x".upper, "has no name|is another object"),
        ],
    )
    def test_functions_without_a_name_are_refused(self, value: Any, message: str) -> None:
        config = Model.Config(layers=[Linear.Config()], nested={}, functions=[double, value])
        with pytest.raises(ConfigError, match=message) as caught:
            to_text(config)
        assert str(caught.value).startswith("functions: ")
        assert "It was set at tests/config/test_text.py:" in str(caught.value)

    def test_closures_are_refused(self) -> None:
        def inner(x: int) -> int:
            return x

        with pytest.raises(ConfigError, match=r"layer.activation: .* Define it with `def` at"):
            to_text(Model.Config(layer=FeedForward.Config(activation=inner)))

    def test_a_function_whose_name_means_another_is_refused(self) -> None:
        def impostor(value: float) -> float:
            return value

        impostor.__qualname__ = "double"
        impostor.__module__ = double.__module__
        with pytest.raises(ConfigError, match="components:double is another object than the one"):
            to_text(FeedForward.Config(activation=impostor))

    def test_a_private_function_is_refused_with_advice(self) -> None:
        json_scanner = json.decoder.scanner.py_make_scanner  # type: ignore[attr-defined]
        assert to_text(FeedForward.Config(activation=json_scanner))

        def hidden() -> None: ...

        hidden.__module__, hidden.__qualname__ = "library._src.inner", "act"
        with pytest.raises(ConfigError, match=r'register_function\("library:act"\)'):
            to_text(FeedForward.Config(activation=hidden))

    def test_a_component_inside_a_function_is_refused(self) -> None:
        class Local(Component):
            pass

        with pytest.raises(ConfigError, match=r"Local cannot be written .* inside a function"):
            to_text(Model.Config(anything=Local.Config()))

    def test_a_config_class_without_a_component_is_refused(self) -> None:
        class Big(FeedForward.Config):
            width = 100

        with pytest.raises(ConfigError, match="Big cannot be written as text, because it is not"):
            to_text(Big())

    def test_a_default_needs_no_name(self) -> None:
        assert to_text(Nameless.Config()) == "tests.config.test_text:Nameless()\n"
        assert all_values(Nameless.Config())["function"] == "<function>"
        with pytest.raises(ConfigError, match=r"function: .* has no name"):
            all_values(Nameless.Config(function=lambda x: -x))


VALUES: list[Any] = [
    "", "a = b", "# no comment", "line\nbreak", "\r\n", "tab\t", "quote'\"", "back\\slash",
    "é漢字🦊",
    "\u2028\x85\x0b\x00", "\ud800", "REQUIRED", "os:system", "list(2)", "x()", "inf", " padded ",
    0, -1, 10**30, True, False, None, 0.1, -0.0, 1e-300, 1e22, math.inf, -math.inf, math.nan,
    REQUIRED,
    [], (), {}, [[]], ((),), (1,), [1, (2, [3])], {"a": {"b": []}}, {1: 2}, {None: 1}, {True: 1},
    {(1, 2): "x"}, {"a.b": 1}, {"1": 1, 1: 2}, [math.nan, -math.inf], {"x": REQUIRED},
    [double], (double, 1, [triple]), {"f": double, "n": [1]}, [Linear.Config()],
    {"x": (Linear.Config(), {"y": FeedForward.Config()})}, ({"10": double, "9": double},),
    double, Linear.Config(features=3), config_for(double, value=Linear.Config()),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: without_address(value)[:40])
def test_every_kind_of_value_reads_back(value: Any) -> None:
    config = Model.Config(anything=value)
    text = to_text(config)
    assert from_text(text) == config
    assert to_text(from_text(text)) == text
    assert diff(from_text(text), config) == []
    assert text.count("\n") == len(text.splitlines())


def test_windows_line_ends_comments_and_order_do_not_matter() -> None:
    text = to_text(tree())
    head, *lines = text.splitlines()
    shuffled = "\r\n".join(["# a comment", "", head, *reversed(lines), "   # the end  ", ""])
    assert from_text(shuffled) == tree()


MALICE: list[tuple[str, str]] = [
    ("", "Config text begins with 'module:Component()', got nothing."),
    ("steps = 3", "Config text begins with 'module:Component()', got 'steps = 3'."),
    ("os:system()", "line 1: 'os:system' is neither a registered component nor a listed function"),
    ("os:system('ls')", "Config text begins with"),
    ("builtins:eval()", "'builtins:eval' is neither"),
    ("dovetail.config.registry:register_function()", "is neither a registered component"),
    ("tests.config.components:Nothing()", "'tests.config.components:Nothing' is neither"),
    ("tests.config.components:TokenMap()", "'tests.config.components:TokenMap' is neither"),
    ("tests.config.components:Model.Config()", "'tests.config.components:Model.Config' is neither"),
    ("tests.config.components:Model.__init__()", "is neither a registered component"),
    ("Model()", "Config text begins with"),
    (HEAD + "anything = os:system", "line 2: anything: 'os:system' is neither"),
    (HEAD + "anything = os:system()", "line 2: anything: 'os:system' is neither"),
    (HEAD + "anything = __import__('os')", "line 2: anything: cannot read"),
    (HEAD + "anything = (lambda: 1)()", "line 2: anything: cannot read"),
    (HEAD + "anything = [x for x in (1,)]", "line 2: anything: cannot read"),
    (HEAD + "anything = f'{1}'", "cannot read"),
    (HEAD + "anything = 1 + 1", "cannot read"),
    (HEAD + "anything = 1j", "cannot read"),
    (HEAD + "anything = b'x'", "cannot read"),
    (HEAD + "anything = {1, 2}", "cannot read"),
    (HEAD + "anything = {**{}}", "cannot read"),
    (HEAD + "anything = {1: 2, 1: 3}", "cannot read"),
    (HEAD + "anything = {[]: 1}", "cannot read"),
    (HEAD + "anything = -True", "cannot read"),
    (HEAD + "anything = ...", "cannot read"),
    (HEAD + "anything = ", "line 2: expected 'path = value'"),
    (HEAD + "anything = 1; steps = 2", "cannot read"),
    (HEAD + "anything = 1 # why", ""),
    (HEAD + "anything = 'open", "cannot read"),
    (HEAD + "anything = name", "cannot read 'name' as a value. Expected a number, a quoted string"),
    (HEAD + "anything = " + "[" * 100_000, "cannot read"),
    (HEAD + "anything = " + "[" * 5_000 + "]" * 5_000, "cannot read"),
    (HEAD + "anything = " + "-" * 100_000 + "1", "cannot read"),
    (HEAD + "anything = " + "9" * 10_000, "cannot read"),
    (HEAD + "garbage", "line 2: expected 'path = value', got 'garbage'."),
    (HEAD + "steps=3", "line 2: expected 'path = value', got 'steps=3'."),
    (HEAD + "steps = 3\nsteps = 4", "line 3: steps was already set on line 2."),
    (HEAD + "stpes = 3", "line 2: stpes: Model has no field 'stpes'. Did you mean 'steps'"),
    (HEAD + "layer.widht = 3", "line 2: layer.widht: FeedForward has no field 'widht'."),
    (HEAD + "_node = 3", "line 2: _node: Model has no field '_node'"),
    (HEAD + "__class__ = 3", "line 2: __class__: Model has no field '__class__'"),
    (HEAD + "layer.__dict__.x = 3", "layer.__dict__: FeedForward has no field"),
    (HEAD + "build = 3", "line 2: build: Model has no field 'build'"),
    (HEAD + "steps = 'x'", "line 2: steps: expected int, got 'x' (str)."),
    (
        HEAD + "steps.x = 1",
        "line 2: steps is 10 (int) by default, which has no fields. A line '",
    ),
    (HEAD + "steps = 3\nsteps.x = 1", "line 3: steps is '3', which has no fields."),
    (HEAD + "name.upper = 1", "line 2: name is 'model' (str) by default, which has no fields."),
    (
        HEAD + "layers = list(2)\nlayers.0 = tests.config.components:Linear()",
        "layers.1 has no line.",
    ),
    (HEAD + "layers = list(999999999)", "line 2: layers.0 has no line."),
    (HEAD + "layers = list(-1)", "cannot read"),
    (HEAD + "layers = list(99999999999)", "cannot read"),
    (HEAD + "layers = list(0)\nlayers.0 = 1", "line 3: layers.0 is not in 'list(0)'."),
    (HEAD + "layers = list(1)\nlayers.00 = 1", "layers.0 has no line"),
    (HEAD + "layers.0 = tests.config.components:Linear()", "A line 'layers = ...' is missing."),
    (HEAD + "layers.0.features = 3", "A line 'layers = ...' is missing."),
    (
        HEAD + "named = dict(a, b)\nnamed.a = tests.config.components:Linear()",
        "named.b has no line.",
    ),
    (
        HEAD + "named = dict(a)\nnamed.a = tests.config.components:Linear()\nnamed.c = 1",
        "named.c is not",
    ),
    (
        HEAD + "named = dict(a, a)\nnamed.a = tests.config.components:Linear()",
        "read 'dict(a, a)'",
    ),
    (HEAD + "named = dict()", "cannot read 'dict()'"),
    (HEAD + "named = dict(a,)\nnamed.a = 1", "cannot read 'dict(a,)'"),
    (
        HEAD + "layer = tests.config.components:Mute()",
        "line 2: layer: expected a config that builds",
    ),
    (HEAD + "layer..width = 3", "line 2: expected 'path = value'"),
    (HEAD + ".layer = 3", "line 2: expected 'path = value'"),
    (HEAD + "la yer = 3", "line 2: expected 'path = value'"),
    (HEAD + "x.²= = 3", "line 2: expected 'path = value'"),
    (
        HEAD + ".".join(["layer"] * 5_000) + " = 3",
        "line 2: the path has 5000 pieces, more than",
    ),
    (HEAD + "tests.config.components:Model()", "line 2: expected 'path = value'"),
]


@pytest.mark.parametrize(("text", "message"), [m for m in MALICE if m[1]], ids=lambda t: t[-40:])
def test_bad_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_text(text)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_unknown_names_come_with_the_nearest_and_with_advice() -> None:
    with pytest.raises(ConfigError) as caught:
        from_text("tests.config.components:FeedForwrd()")
    assert "Did you mean 'tests.config.components:FeedForward'" in str(caught.value)
    assert "name the package with --import" in str(caught.value)


def test_the_nearest_name_is_found_among_namesakes() -> None:
    type("FeedForward", (Component,), {"__module__": "elsewhere"})  # registered by being defined
    with pytest.raises(ConfigError) as caught:
        from_text("tests.config.components:FeedForwrd()")
    assert "Did you mean 'tests.config.components:FeedForward'" in str(caught.value)


def test_deep_trees_within_reason_read_back() -> None:
    config: Any = Linear.Config()
    for _ in range(40):
        config = Mixture.Config(expert=config)
    assert from_text(to_text(config)) == config


def test_long_lists_are_read_in_good_time() -> None:
    config = Model.Config(layers=[Simple.Config(width=index) for index in range(500)])
    assert from_text(to_text(config)).layers[499].width == 499


READ_UNDER_GUARD = """
import sys
from tests.config.test_text import MALICE, VALUES, Model
from dovetail.config import ConfigError, from_text, to_text
from dovetail.config.fields import field_hints
from dovetail.config.registry import known_components, find_component
for name in known_components(lambda component: True):
    field_hints(find_component(name, "").Config)  # annotations are ours, and evaluated once
texts = [text for text, _ in MALICE] + [to_text(Model.Config(anything=value)) for value in VALUES]
modules = set(sys.modules)
bad = ("import", "os.", "subprocess.", "open", "socket.", "exec", "ctypes.", "shutil.", "marshal.")
seen = []
sys.addaudithook(lambda event, args: seen.append(event) if event.startswith(bad) else None)
read = 0
for text in texts:
    try:
        from_text(text)
        read += 1
    except ConfigError:
        pass
assert not seen, seen
assert set(sys.modules) == modules, set(sys.modules) - modules
import wave  # shows that the guard is awake
assert "import" in seen
print(read)
"""


EVERY_COMPONENT = """
import pkgutil
import dovetail
from dovetail.config import import_submodules
from dovetail.config.registry import known_components
from dovetail.experiments import find_experiment

find_experiment("tiny-lm").config()
known = set(known_components(lambda component: True))
for subpackage in pkgutil.iter_modules(dovetail.__path__):
    if subpackage.ispkg and subpackage.name != "cli":
        import_submodules(f"dovetail.{subpackage.name}")
print(*sorted(set(known_components(lambda component: True)) - known))
"""


# `run/` is above the trainer; the feature `from-run` imports it.
OF_RUNS = {"InitFromRun", "InitSubmoduleFromRun"}


def test_text_may_name_every_component_of_the_package() -> None:
    """In a new process: a component whose module nothing imports would be unknown there."""
    found = subprocess.run(
        [sys.executable, "-c", EVERY_COMPONENT], stdout=subprocess.PIPE, text=True, check=True
    )
    assert set(found.stdout.split()) == OF_RUNS


def test_reading_imports_nothing_and_runs_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", READ_UNDER_GUARD],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= len(VALUES)
