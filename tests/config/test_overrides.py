"""`key.path=value`, `--with NAME:key=value`, differences and identity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, Protocol

import pytest

from dovetail.config import (
    REQUIRED,
    Component,
    ConfigError,
    ConfigOf,
    apply_modifier,
    apply_overrides,
    config_for,
    diff,
    identity,
    incidental,
    interchangeable_with,
    modifier,
    modifiers,
    to_text,
    value_at,
)
from dovetail.config.overrides import _modifiers
from dovetail.config.parsing import parse_value, split_outside
from tests.config.components import (
    FeedForward,
    Linear,
    Model,
    Simple,
    TokenMap,
    double,
    tree,
    triple,
    without_address,
)

PARSED: list[tuple[str, Any, Any]] = [
    ("3", int, 3),
    ("1e6", int, 1_000_000),
    ("1_000", int, 1000),
    ("-3", int, -3),
    ("3", float, 3.0),
    ("inf", float, float("inf")),
    ("true", bool, True),
    ("False", bool, False),
    ("none", int | None, None),
    ("null", str | None, None),
    ("None", Any, None),
    ("3", int | None, 3),
    ("hello", str, "hello"),
    ("3", str, "3"),
    ("true", str, "true"),
    ("none", str, "none"),
    ("a=b:c", str, "a=b:c"),
    ("'quoted'", str, "quoted"),
    ('"a, b"', str, "a, b"),
    ("it's", str, "it's"),
    ("", str, ""),
    ("3", str | int, 3),
    ("x", str | int, "x"),
    ("fast", Literal["fast", 3], "fast"),
    ("3", Literal["fast", 3], 3),
    ("'fast'", Literal["fast"], "fast"),
    ("(1,2)", tuple[int, ...], (1, 2)),
    ("1,2", tuple[int, ...], (1, 2)),
    ("[1, 2]", tuple[int, int], (1, 2)),
    ("(1,)", tuple[int, ...], (1,)),
    ("notes/[a-c]*.md", str | tuple[str, ...], "notes/[a-c]*.md"),
    ("a,b", str | tuple[str, ...], ("a", "b")),
    ("(a,)", str | tuple[str, ...], ("a",)),
    ("'a,b'", str | tuple[str, ...], "a,b"),
    ("[]", list[int], []),
    ("", list[int], []),
    ("[a, b]", list[str], ["a", "b"]),
    ("a", list[str], ["a"]),
    ("[[1, 2], [3]]", list[list[int]], [[1, 2], [3]]),
    ("(x, 3)", tuple[str, int], ("x", 3)),
    ("[1, none]", list[int | None], [1, None]),
    ("{'a': 1}", dict[str, float], {"a": 1.0}),
    ("tests.config.components:triple", Callable[..., Any], triple),
    ("triple", Callable[..., Any], triple),
    ("tests.config.components:triple", Any, triple),
    ("Linear.x", Any, "Linear.x"),
    ("tests.config.components:Linear", ConfigOf[TokenMap], Linear.Config()),
    ("tests.config.components:Linear()", ConfigOf[TokenMap] | None, Linear.Config()),
    ("tests.config.components:double()", Any, config_for(double)),
    ("none", ConfigOf[TokenMap] | None, None),
    ("1.5", Any, 1.5),
    ("REQUIRED", int, REQUIRED),
]


@pytest.mark.parametrize(("text", "hint", "expected"), PARSED, ids=without_address)
def test_what_is_typed_is_read_by_its_type(text: str, hint: Any, expected: Any) -> None:
    value = parse_value(text, hint, "x")
    assert type(value) is type(expected)
    assert value is expected or value == expected


UNREADABLE: list[tuple[str, Any, str]] = [
    ("three", int, "x: expected int, got 'three'."),
    ("1.5", int, "x: expected int, got '1.5'."),
    ("yes", bool, "x: expected bool, got 'yes'."),
    ("1", bool, "x: expected bool, got '1'."),
    ("", int, "x: expected int, got ''."),
    ("__import__('os')", int | None, "x: expected int or None, got"),
    ("slow", Literal["fast"], "x: expected one of 'fast', got 'slow'."),
    ("(1, two)", tuple[int, ...], "x.1: expected int, got 'two'."),
    ("(1, 2, 3)", tuple[int, int], "x: expected tuple[int, int], got [1, 2, 3] (list). It needs 2"),
    ("os:system", Callable[..., Any], "x: 'os:system' is neither a registered component"),
    ("Linaer", ConfigOf[TokenMap], "x: 'Linaer' is neither a registered component"),
    (
        "Linear(features=3)",
        ConfigOf[TokenMap],
        "x: expected the name of a component, such as Linear",
    ),
    ("[1", list[int], "x.0: expected int, got '[1'."),
]


@pytest.mark.parametrize(("text", "hint", "message"), UNREADABLE)
def test_what_cannot_be_read_is_refused(text: str, hint: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_value(text, hint, "x")
    assert message in str(caught.value)


class TestOverrides:
    def test_reach_through_lists_tuples_and_dicts(self) -> None:
        config = apply_overrides(
            tree().clone(table={1: "x"}),
            [
                "steps=7",
                "layer.up.bias=true",
                "layers.0.width=11",
                "pair.1.expert.rate=2",
                "named.b=tests.config.components:Simple",
                "named.b.width=12",
                "nested.x.1.activation=triple",
                "weights.new=1",
                "table.1=y",
                "shape.1=5",
                "anything=[1, 2]",
                "anything.0=9",
            ],
        )
        assert (config.steps, config.layer.up.bias, config.layers[0].width) == (7, True, 11)
        assert config.pair[1].expert.rate == 2.0
        assert config.named["b"] == Simple.Config(width=12)
        assert config.nested["x"][1].activation is triple
        assert (config.weights, config.table, config.shape) == ({"new": 1.0}, {1: "y"}, (1, 5))
        assert config.anything == [9, 2]

    def test_the_argument_is_not_changed(self) -> None:
        config = tree()
        apply_overrides(config, ["layers.0.width=11", "steps=3"])
        assert config == tree()

    def test_items_beside_the_one_set_keep_their_origins(self) -> None:
        config = apply_overrides(tree(), ["layers.1.features=4"])
        assert config.layers[0].get_origin("width") == tree().layers[0].get_origin("width")

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("steps", "'steps': expected key.path=value, such as model.decoder"),
            ("=3", "'=3': expected key.path=value"),
            ("stpes=3", "stpes: Model has no field 'stpes'. Did you mean 'steps'"),
            ("layers.0.widht=3", "layers.0.widht: FeedForward has no field 'widht'. Did you mean"),
            ("layers.5.width=3", "layers.5: layers is a list of 2: expected an index from 0 to 1."),
            ("layers.x=3", "layers.x: layers is a list of 2: expected an index from 0 to 1."),
            ("layers.-1=3", "layers.-1: layers is a list of 2"),
            ("functions.0=triple", "functions is a list of 0: expected nothing, since it is empty"),
            ("layers.²=3", "layers.²: layers is a list of 2"),
            ("named.c.width=3", "named.c: there is no key 'c'. Known: a, b."),
            ("head.width=3", "head is None, which has no fields. Set it to a component"),
            ("steps.x=3", "steps is 10 (int), which has no fields."),
            ("steps=x", "steps: expected int, got 'x'."),
            (
                "layer=tests.config.components:Mute",
                "layer: expected a config that builds a TokenMap",
            ),
            ("layers.0=tests.config.components:Mute", "layers.0: expected a config that builds a"),
            ("named.b.up=", "named.b.up: expected the name of a component"),
            (".steps=3", "'.steps=3': expected key.path=value"),
            ("layer..width=3", "'layer..width=3': expected key.path=value"),
        ],
    )
    def test_mistakes_are_named_with_their_path(self, override: str, message: str) -> None:
        with pytest.raises(ConfigError) as caught:
            apply_overrides(tree(), [override])
        assert message in str(caught.value)

    def test_value_at(self) -> None:
        assert value_at(tree(), "named.b.rate") == 1.0
        with pytest.raises(ConfigError, match=r"named.z: there is no key 'z'"):
            value_at(tree(), "named.z")


@pytest.fixture
def rules() -> Iterator[list[Any]]:
    """Registers some modifiers, good and bad, for one test."""
    kept: list[Any] = []
    with _modifiers.restored():

        @modifier("rule")
        def rule(config: Any, axes: tuple[int, ...] = (), name: str = "", part: Any = None) -> Any:
            return config.set(name=f"{axes} {name} {part}")

        @modifier("needs-value")
        def needs_value(config: Any, value: int, *, flag: bool = False) -> Any:
            return config.set(steps=value if not flag else -value)

        @modifier("careless/changes")
        def changes(config: Any) -> Any:
            config.layer.width = 1234
            config.layers.clear()
            kept.append(config)
            return config

        @modifier("forgets")
        def forgets(config: Any) -> None:
            config.set(steps=3)

        yield kept


class TestModifiers:
    @pytest.mark.parametrize(
        ("text", "name"),
        [
            ("rule", "()  None"),
            ("rule:", "()  None"),
            ("rule:axes=(1,2),name=x", "(1, 2) x None"),
            ("rule: name = 'a, b' , axes = [3]", "(3,) a, b None"),
            ("rule:name=a:b=c", "() a:b=c None"),
            ("rule:part={'x': (1, 2)},name=y", "() y {'x': (1, 2)}"),
        ],
    )
    def test_arguments_are_typed(self, rules: Any, text: str, name: str) -> None:
        assert apply_modifier(Model.Config(), text).name == name

    def test_values_may_name_components(self, rules: Any) -> None:
        changed = apply_modifier(Model.Config(), "rule:part=tests.config.components:Linear()")
        assert "Linear.Config()" in changed.name

    def test_keyword_only_arguments(self, rules: Any) -> None:
        assert apply_modifier(Model.Config(), "needs-value:value=3,flag=true").steps == -3

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("rlue", "--with rlue: there is no modifier 'rlue'. Did you mean 'rule'"),
            ("rule:nmae=x", "--with rule:nmae: no such argument. Did you mean 'name'"),
            ("rule:config=x", "--with rule:config: no such argument."),
            ("rule:axes=1,2", "A value with a comma needs brackets, as in axes=(1,2)."),
            ("rule:name=x,name=y", "--with rule:name: given twice."),
            ("rule:axes=(1,x)", "--with rule:axes.1: expected int, got 'x'."),
            ("needs-value", "--with needs-value: needs value. Write needs-value:value=value."),
            ("needs-value:value=x", "--with needs-value:value: expected int, got 'x'."),
            ("forgets", "'forgets' returned None, not a config. Does it end with `return config`?"),
        ],
    )
    def test_mistakes(self, rules: Any, text: str, message: str) -> None:
        with pytest.raises(ConfigError) as caught:
            apply_modifier(Model.Config(), text)
        assert message in str(caught.value)

    def test_the_argument_is_never_changed(self, rules: list[Any]) -> None:
        config = tree()
        changed = apply_modifier(config, "careless/changes")
        assert config == tree()
        assert changed.layer.width == 1234
        rules[0].layer.width = 1
        assert changed.layer.width == 1234, "what a modifier keeps is not what it gave"

    def test_a_name_means_one_modifier(self, rules: Any) -> None:
        with pytest.raises(ConfigError, match=r"The modifier 'rule' is defined in .* and again in"):

            @modifier("rule")
            def another(config: Any) -> Any:
                return config

        assert list(modifiers()) == sorted(modifiers())


def test_split_outside() -> None:
    assert split_outside('a=(1,2),b=\'x,y\',c=[{1,2},3],d="\\","') == [
        "a=(1,2)",
        "b='x,y'",
        "c=[{1,2},3]",
        'd="\\","',
    ]


class Logged(Component):
    class Config(Component.Config["Logged"]):
        width: int = 2
        log_every: int = incidental(10)
        inner: ConfigOf[TokenMap] = incidental(FeedForward.Config())


class Sum(Component):
    class Config(Component.Config["Sum"]):
        pass


@interchangeable_with(Sum)
class FastSum(Component):
    class Config(Component.Config["FastSum"]):
        chunk: int = 4


class RoughSum(FastSum):
    """May compute something else."""


class Holds(Component):
    class Config(Component.Config["Holds"]):
        child: ConfigOf[Any] = REQUIRED
        children: dict[str, ConfigOf[Any]] = REQUIRED


class TestDifferences:
    def test_lists_what_differs_in_the_order_of_paths(self) -> None:
        left = Model.Config(layers=[Linear.Config() for _ in range(12)])
        right = left.clone(steps=3)
        right.layers[2].features = 1
        right.layers[10].features = 2
        right.layer = Simple.Config()
        assert [str(difference) for difference in diff(left, right)] == [
            "layer: tests.config.components:FeedForward() -> tests.config.components:Simple()",
            "layer.activation: tests.config.components:double -> 'none'",
            "layer.rate: 0.5 -> (absent)",
            "layer.up: tests.config.components:Linear() -> (absent)",
            "layer.up.bias: False -> (absent)",
            "layer.up.features: REQUIRED -> (absent)",
            "layer.width: 4 -> 1",
            "layers.2.features: REQUIRED -> 1",
            "layers.10.features: REQUIRED -> 2",
            "steps: 10 -> 3",
        ]

    def test_roots_of_two_kinds(self) -> None:
        first = diff(Linear.Config(), Simple.Config())[0]
        assert (
            str(first)
            == "(root): tests.config.components:Linear() -> tests.config.components:Simple()"
        )

    def test_identity_leaves_incidental_fields_out(self) -> None:
        one = Logged.Config(width=3, log_every=1, inner=Linear.Config())
        assert identity(one) == Logged.Config(width=3)
        assert one.log_every == 1
        assert identity(Logged.Config(width=4)) != identity(one)

    def test_interchangeable_components_have_one_identity(self) -> None:
        def held(*children: ConfigOf[Any]) -> ConfigOf[Any]:
            return Holds.Config(child=children[0], children={"a": children[1]})

        fast, inexact = FastSum.Config(chunk=8), RoughSum.Config(chunk=8)
        assert identity(held(fast, fast)) == held(Sum.Config(), Sum.Config())
        assert to_text(identity(held(fast, fast))) == to_text(held(Sum.Config(), Sum.Config()))
        assert identity(held(inexact, fast)) == held(inexact, Sum.Config()), "not inherited"
        around = Holds.Config(child=held(fast, inexact), children={})
        assert identity(around).child.child == Sum.Config()
        assert fast == FastSum.Config(chunk=8)


class Whistle(Protocol):
    def whistle(self) -> str: ...


class TinWhistle(Component):
    class Config(Component.Config["TinWhistle"]):
        pass

    def whistle(self) -> str:
        return "wheee"


class Referee(Component):
    class Config(Component.Config["Referee"]):
        whistle: ConfigOf[Whistle] = TinWhistle.Config()


def test_only_components_that_fit_are_suggested() -> None:
    for name, advice in (
        ("Referees", "Known: TinWhistle."),
        ("TinWhistel", "Did you mean 'TinWhistle'?"),
    ):
        with pytest.raises(ConfigError) as caught:
            apply_overrides(Referee.Config(), [f"whistle={name}"])
        assert f"whistle: '{name}' is neither" in str(caught.value)
        assert advice in str(caught.value)
