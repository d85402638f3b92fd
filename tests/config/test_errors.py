"""Every mistake names the path, what was expected and what came, and what to do next."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal, NamedTuple, Optional

import pytest

from dovetail.config import REQUIRED, Component, ConfigError, ConfigOf
from dovetail.config.typecheck import check, interface_mismatch
from tests.config.components import (
    Activation,
    Awkward,
    FeedForward,
    Linear,
    Mixture,
    Model,
    Mute,
    TokenMap,
    double,
    tree,
)


class Point(NamedTuple):
    x: int
    y: int


class Colour(enum.IntEnum):
    RED = 1


class TestUnknownFields:
    def test_the_constructor_names_the_nearest(self) -> None:
        with pytest.raises(ConfigError) as caught:
            FeedForward.Config(widht=4)  # type: ignore[call-arg]
        assert str(caught.value) == (
            "widht: FeedForward has no field 'widht'. Did you mean 'width'?"
        )

    def test_the_path_is_complete(self) -> None:
        config = tree()
        with pytest.raises(ConfigError, match=r"^named.b.widht: FeedForward has no field 'widht'"):
            config.named["b"].widht = 3
        with pytest.raises(ConfigError, match=r"^nested.x.1.up.bais: Linear .* mean 'bias'"):
            config.nested["x"][1].up.set(bais=True)
        with pytest.raises(ConfigError, match=r"^pair.1.expert.hidden: FeedForward has no field"):
            _ = config.pair[1].expert.hidden

    def test_all_are_listed_where_none_is_near(self) -> None:
        with pytest.raises(ConfigError, match="Known: bias, features"):
            Linear.Config(zzz=1)  # type: ignore[call-arg]


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"steps": "3"}, "steps: expected int, got '3' (str)."),
    ({"steps": 3.0}, "steps: expected int, got 3.0 (float)."),
    ({"steps": True}, "steps: expected int, got True (bool)."),
    ({"steps": None}, "steps: expected int, got None."),
    ({"steps": Colour.RED}, "steps: expected int, got <Colour.RED: 1> (Colour)."),
    ({"name": 3}, "name: expected str, got 3 (int)."),
    ({"note": 3}, "note: expected str or None, got 3 (int)."),
    ({"mode": "slow"}, "mode: expected one of 'fast', 'exact', 3, got 'slow' (str)."),
    ({"mode": 3.0}, "mode: expected one of 'fast', 'exact', 3, got 3.0 (float)."),
    ({"scale": "big"}, "scale: expected float or None, got 'big' (str)."),
    ({"scale": True}, "scale: expected float or None, got True (bool)."),
    ({"shape": (1, 2, 3)}, "shape: expected tuple[int, int], got (1, 2, 3) (tuple). It needs 2 v"),
    ({"shape": (1, "x")}, "shape.1: expected int, got 'x' (str)."),
    ({"shape": 5}, "shape: expected tuple[int, int], got 5 (int)."),
    ({"axes": "batch"}, "axes: expected tuple[str, ...], got 'batch' (str)."),
    ({"axes": ["a", 3]}, "axes.1: expected str, got 3 (int)."),
    ({"weights": {"a": "x"}}, "weights.a: expected float, got 'x' (str)."),
    ({"weights": {3: 1.0}}, "weights (a key): expected str, got 3 (int)."),
    ({"weights": [1.0]}, "weights: expected dict[str, float], got [1.0] (list)."),
    ({"layer": 3}, "layer: expected a config that builds a TokenMap, got 3 (int)."),
    (
        {"layer": Mute.Config()},
        "a config that builds a TokenMap, got a Mute config. Mute has no method 'map'.",
    ),
    ({"layer": Linear}, "Did you mean Linear.Config()?"),
    ({"head": Mute.Config()}, "head: expected a config that builds a TokenMap, got a Mute config."),
    ({"layers": [Linear.Config(), Mute.Config()]}, "layers.1: expected a config that builds"),
    ({"named": {"x": Mute.Config()}}, "named.x: expected a config that builds a TokenMap"),
    ({"nested": {"x": [Linear.Config(), None]}}, "nested.x.1: expected a config that builds"),
    ({"pair": (Mute.Config(),)}, "pair.0: expected a config that builds a TokenMap"),
    ({"functions": [double, 3]}, "functions.1: expected a function, got 3 (int)."),
    ({"functions": [Linear.Config()]}, "functions.0: expected a function, got a Linear config."),
    ({"anything": object}, ""),
    ({"anything": {1, 2}}, "anything: a config cannot hold {1, 2} (set); it holds None, bool"),
    ({"anything": [b"x"]}, "anything.0: a config cannot hold b'x' (bytes)"),
    ({"anything": Point(1, 2)}, "anything: a config cannot hold Point(x=1, y=2) (Point)"),
    ({"anything": {"k": Colour.RED}}, "anything.k: a config cannot hold <Colour.RED: 1>"),
    ({"anything": {Colour: 1}}, "Use strings or numbers as keys."),
]


@pytest.mark.parametrize(("values", "message"), [m for m in MISTAKES if m[1]])
def test_wrong_values(values: dict[str, Any], message: str) -> None:
    config = Model.Config()
    for attempt in (lambda: Model.Config(**values), lambda: config.set(**values)):
        with pytest.raises(ConfigError) as caught:
            attempt()
        assert message in str(caught.value)
    assert config == Model.Config(), "a refused value leaves the config as it was"


def test_the_path_of_a_wrong_value_is_complete() -> None:
    config = tree()
    with pytest.raises(ConfigError, match=r"^pair.1.expert.width: expected int, got 'x' \(str\)"):
        config.pair[1].expert.width = "x"


def test_methods_that_cannot_be_called_as_the_interface_says() -> None:
    with pytest.raises(ConfigError) as caught:
        Model.Config(layer=Awkward.Config())  # type: ignore[arg-type]
    assert "Awkward.map cannot be called as the interface says" in str(caught.value)
    assert "missing a required argument: 'mask'" in str(caught.value)


class TestInterfaces:
    def test_static_and_class_methods_count(self) -> None:
        class Static:
            @staticmethod
            def map(tokens: list[int]) -> list[int]:
                return tokens

        class OfClass:
            @classmethod
            def map(cls, tokens: list[int]) -> list[int]:
                return tokens

        assert interface_mismatch(Static, TokenMap) == interface_mismatch(OfClass, TokenMap) == ""

    def test_an_attribute_is_no_method(self) -> None:
        class Attribute:
            map = 3

        assert interface_mismatch(Attribute, TokenMap) == "Attribute.map is not a method"

    def test_keyword_arguments_count(self) -> None:
        class Wants(TokenMap):
            def run(self, x: int, *, training: bool) -> int: ...

        assert interface_mismatch(Linear, Wants) == "Linear is not a Wants"

    def test_a_function_field_may_be_typed_by_its_call(self) -> None:
        def two(first: float, second: float) -> float:
            return first + second

        assert check(double, Activation, "act") is double
        with pytest.raises(ConfigError, match=r"act: expected Activation, got .*cannot be called"):
            check(two, Activation, "act")
        with pytest.raises(ConfigError, match="act: expected Activation, got 3"):
            check(3, Activation, "act")


class TestConversion:
    @pytest.mark.parametrize(
        ("value", "hint", "expected"),
        [
            (1, float, 1.0),
            (1, float | int, 1),
            ([1, 2], tuple[int, ...], (1, 2)),
            ((1, 2), list[int], [1, 2]),
            ([1], Sequence[float], (1.0,)),
            ({"a": 1}, Mapping[str, float], {"a": 1.0}),
            (None, Optional[int], None),  # noqa: UP045
            ("a", Literal["a"], "a"),
            (REQUIRED, int, REQUIRED),
            (3, Any, 3),
            ([1], list, [1]),
            (int, type, int),
        ],
    )
    def test_what_loses_nothing_is_converted(self, value: Any, hint: Any, expected: Any) -> None:
        result = check(value, hint, "x")
        assert result is expected or (result == expected and type(result) is type(expected))

    def test_numbers_of_numpy_become_pythons(self) -> None:
        import numpy

        assert type(check(numpy.int64(3), int, "x")) is int
        assert type(check(numpy.float32(0.5), float, "x")) is float
        assert type(check(numpy.float64(0.5), Any, "x")) is float
        with pytest.raises(ConfigError, match="expected int"):
            check(numpy.float64(3.0), int, "x")
        with pytest.raises(ConfigError, match="expected float"):
            check(numpy.ones(2), float, "x")

    @pytest.mark.parametrize("value", [2**53 + 1, 10**400, Fraction(1, 3)])
    def test_what_would_lose_something_is_refused(self, value: Any) -> None:
        with pytest.raises(ConfigError, match="x: expected float"):
            check(value, float, "x")

    def test_concrete_config_types(self) -> None:
        assert check(Linear.Config(), Linear.Config, "x")
        with pytest.raises(ConfigError, match=r"x: expected a Linear.Config, got a Mute config"):
            check(Mute.Config(), Linear.Config, "x")
        with pytest.raises(ConfigError, match="x: expected a config that builds a Linear"):
            check(FeedForward.Config(), ConfigOf[Linear], "x")
        assert check(FeedForward.Config(), ConfigOf[Any], "x")
        assert check(Mixture.Config(), ConfigOf[Component], "x")

    def test_a_long_value_is_shortened(self) -> None:
        with pytest.raises(ConfigError) as caught:
            check("x" * 1000, int, "x")
        assert len(str(caught.value)) < 200


def test_callable_hints_are_described_in_words() -> None:
    with pytest.raises(ConfigError, match=r"f: expected a function or None, got 3 \(int\)"):
        check(3, Callable[[int], int] | None, "f")
