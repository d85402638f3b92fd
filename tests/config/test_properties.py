"""What holds of any config whatever: round trips, by-value assignment, replacement, differences.

`EXAMPLES=2000 pytest tests/config/test_properties.py` looks longer.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail.config import (
    REQUIRED,
    Config,
    ConfigError,
    all_values,
    apply_overrides,
    collect_reports,
    config_for,
    diff,
    from_text,
    replace,
    same,
    to_text,
    value_at,
    visit,
)
from dovetail.config.parsing import write_literal
from dovetail.config.values import items_of
from tests.config.components import (
    Adapter,
    FeedForward,
    GatedFeedForward,
    Linear,
    Mixture,
    Model,
    Simple,
    double,
    triple,
)

EXAMPLES = int(os.environ.get("EXAMPLES", "40"))
thorough = settings(
    deadline=None, max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), print_blob=True
)

functions = st.sampled_from([double, triple])
floats = st.floats(allow_nan=True, allow_infinity=True)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), floats, st.text(), st.just(REQUIRED), functions
)
names = st.text(alphabet="abXY_019-é", min_size=1, max_size=4)


def containers(inside: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inside, max_size=3),
        st.lists(inside, max_size=3).map(tuple),
        st.dictionaries(names, inside, max_size=3),
    )


plain = st.one_of(
    st.none(),
    st.integers(),
    floats,
    st.text(),
    st.dictionaries(st.one_of(st.text(), st.integers(), st.booleans()), st.integers(), max_size=4),
)


def layers(inside: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draws configs that map tokens, some of them around others."""
    feed_forward = {
        "width": st.integers(),
        "rate": floats,
        "activation": functions,
        "up": inside,
    }
    return st.one_of(
        *(
            st.fixed_dictionaries({}, optional=feed_forward).map(_make(c))
            for c in (FeedForward, GatedFeedForward)
        ),
        st.builds(Mixture.Config, experts=st.integers(), expert=inside),
        st.builds(Adapter.Config, base=inside),
    )


def _make(component: Any) -> Any:
    return lambda values: component.Config(**values)


leaves = st.one_of(
    st.builds(Linear.Config, bias=st.booleans()),
    st.builds(Linear.Config, features=st.integers()),
    st.builds(Simple.Config, width=st.integers(), activation=st.text()),
    st.builds(FeedForward.Config),
)
token_maps = st.recursive(leaves, layers, max_leaves=4)
anything = st.recursive(
    st.one_of(scalars, token_maps, st.builds(config_for, st.just(double), value=floats)),
    containers,
    max_leaves=5,
)
fields: dict[str, st.SearchStrategy[Any]] = {
    "name": st.text(),
    "note": st.none() | st.text(),
    "mode": st.sampled_from(["fast", "exact", 3]),
    "steps": st.integers(),
    "scale": st.none() | floats,
    "shape": st.tuples(st.integers(), st.integers()),
    "axes": st.lists(st.text(), max_size=3),
    "weights": st.dictionaries(st.text(), floats, max_size=3),
    "table": st.dictionaries(st.integers(), st.text(), max_size=3),
    "anything": st.one_of(anything, plain),
    "head": st.none() | token_maps,
    "layer": token_maps,
    "layers": st.lists(token_maps, max_size=3),
    "pair": st.lists(token_maps, max_size=2).map(tuple),
    "named": st.dictionaries(names, token_maps, max_size=3),
    "functions": st.lists(functions, max_size=2),
    "nested": st.dictionaries(names, st.lists(token_maps, max_size=2), max_size=2),
}
models = st.fixed_dictionaries({}, optional=fields).map(_make(Model))


def objects(value: Any) -> list[int]:
    """Lists the identity of everything in a tree that could be shared: configs, lists and dicts."""
    if isinstance(value, Config):
        return [id(value), *(i for item in value._node.values.values() for i in objects(item))]
    own = [id(value)] if isinstance(value, list | dict) else []
    return own + [i for _, item in items_of(value) for i in objects(item)]


def order(value: Any) -> Any:
    """Shows a tree with the order of its dicts."""
    if isinstance(value, Config):
        return [type(value), *(order(item) for item in value._node.values.values())]
    if isinstance(value, dict):
        return [list(value), *(order(item) for item in value.values())]
    return [order(item) for _, item in items_of(value)]


def assert_well_formed(config: Config[Any]) -> None:
    """Checks that nothing is shared and that every config knows its path."""
    found = objects(config)
    assert len(found) == len(set(found))
    for path, inner in visit(config):
        assert inner is (value_at(config, path) if path else config)
        assert inner.tree_path() == path


@thorough
@given(models)
def test_text_reads_back_into_an_equal_config(config: Any) -> None:
    text = to_text(config)
    again = from_text(text)
    assert again == config
    assert to_text(again) == text
    assert order(again) == order(config), "a config read from text behaves the same, order included"
    assert text.isprintable() or "\n" in text
    head, *lines = text.rstrip("\n").split("\n")
    assert from_text("\n".join([head, *reversed(lines)])) == config
    assert_well_formed(again)


@thorough
@given(models)
def test_all_values_reads_back_too(config: Any) -> None:
    values = all_values(config)
    lines = [f"{path} = {value}" if path else value for path, value in values.items()]
    assert from_text("\n".join(lines)) == config


@thorough
@given(models, models)
def test_nothing_is_ever_shared(config: Any, other: Any) -> None:
    assert_well_formed(config)
    for copy in (config.clone(), replace_or_same(config), apply_overrides(config, ["steps=1"])):
        assert_well_formed(copy)
        assert not set(objects(copy)) & set(objects(config))
    before = to_text(other)
    other.layer = config.layer
    other.layers = [config.layer, config.layer]
    other.layers.append(config.layer)
    other.clone()
    assert_well_formed(other)
    assert not set(objects(other)) & set(objects(config))
    assert from_text(before) is not other


def replace_or_same(config: Any) -> Any:
    return replace(config.clone(head=FeedForward.Config()), FeedForward, Simple.Config())


@thorough
@given(models, st.integers())
def test_a_change_to_a_copy_leaves_the_original(config: Any, number: int) -> None:
    text = to_text(config)
    copy = config.clone()
    for _, inner in list(visit(copy)):
        for name, value in inner._node.values.items():
            if isinstance(value, list):
                value.append(value[0] if value else REQUIRED)
            if isinstance(value, dict):
                value.clear()
            if name == "width":
                inner.width = number
    assert to_text(config) == text


@thorough
@given(models)
def test_replacement_leaves_no_old_kind_outside_wraps(config: Any) -> None:
    config = config.clone(head=FeedForward.Config(width=3))
    text = to_text(config)
    old = [path for path, found in visit(config) if isinstance(found, FeedForward.Config)]
    topmost = [path for path in old if not any(path.startswith(f"{other}.") for other in old)]
    for new in (Simple.Config(activation="new"), Mixture.Config(experts=77)):
        unchanged = new.clone()
        with collect_reports() as reports:
            result = replace(config, FeedForward, new)
        assert to_text(config) == text
        assert new == unchanged
        assert sorted(reports[0].replaced) == sorted(topmost)
        assert_well_formed(result)
        wrapped = [f"{path}.expert" for path in topmost]
        for path, found in visit(result):
            if isinstance(found, FeedForward.Config):
                assert any(path == w or path.startswith(f"{w}.") for w in wrapped)
        for path in topmost:
            check_successor(value_at(config, path), value_at(result, path), new)


def check_successor(old: Any, successor: Any, new: Any) -> None:
    """Checks what one replaced config was replaced with."""
    assert type(successor) is type(new)
    for name in new.explicit():
        assert same(getattr(successor, name), getattr(new, name))
    if isinstance(successor, Mixture.Config):
        assert successor.expert == old
    elif "width" in old.explicit():
        assert successor.width == old.width
        assert successor.get_origin("width") == old.get_origin("width")
    else:
        assert successor.width == Simple.Config().width


@thorough
@given(models, models)
def test_differences_lead_from_one_config_to_the_other(left: Any, right: Any) -> None:
    assert diff(left, left.clone()) == []
    differences = diff(left, right)
    assert (differences == []) == (left == right)
    values: dict[str, str | None] = dict(all_values(left))
    for difference in differences:
        assert values.get(difference.path) == difference.left
        values[difference.path] = difference.right
    assert {path: value for path, value in values.items() if value is not None} == all_values(right)


@thorough
@given(models, models)
def test_overrides_can_say_every_plain_value(config: Any, other: Any) -> None:
    plain_fields = ["steps", "mode", "scale", "shape", "axes", "weights", "table", "name"]
    texts = [f"{name}={write_literal(getattr(other, name))}" for name in plain_fields]
    result = apply_overrides(config, texts)
    for name in plain_fields:
        assert same(getattr(result, name), getattr(other, name))
    assert result.layer == config.layer


@thorough
@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    for candidate in (text, f"tests.config.components:Model()\n{text}", f"x = {text}"):
        with contextlib.suppress(ConfigError):
            from_text(candidate)


@thorough
@given(models, st.data())
def test_damaged_text_is_read_or_refused(config: Any, data: st.DataObject) -> None:
    text = to_text(config)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 5)))
    damaged = text[:start] + data.draw(st.text(max_size=3)) + text[end:]
    try:
        read = from_text(damaged)
    except ConfigError:
        return
    assert from_text(to_text(read)) == read
