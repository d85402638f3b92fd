"""Every value knows the line that set it, through copies, modifiers, overrides and replacement."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from dovetail.config import (
    Config,
    apply_modifier,
    apply_overrides,
    derived_paths,
    explain,
    from_text,
    json_origins,
    modifier,
    replace,
    select,
    through,
    to_text,
)
from dovetail.config import modifiers as registered
from dovetail.config.overrides import _modifiers
from dovetail.config.provenance import Origin
from tests.config.components import FeedForward, Linear, Mixture, Model, Simple, tree


def line() -> int:
    """Returns the line of the caller."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def origin_of(config: Config[Any], name: str) -> tuple[str, int]:
    origin = config.get_origin(name)
    assert origin is not None
    return origin.file, origin.line


@pytest.fixture
def wide() -> Iterator[int]:
    with _modifiers.restored():

        @modifier("test-wide")
        def widen(config: Any, width: int = 32) -> Any:
            config.layer.width = width
            return config

        yield inspect.getsourcelines(widen)[1] + 2


def test_a_default_has_no_origin() -> None:
    assert FeedForward.Config().get_origin("width") is None


def test_every_way_to_set_records_its_origin() -> None:
    config, first = FeedForward.Config(width=1), line()
    assert origin_of(config, "width") == (__file__, first)
    config.width = 2
    assert origin_of(config, "width") == (__file__, line() - 1)
    config.set(width=3)
    assert origin_of(config, "width") == (__file__, line() - 1)
    copy = config.clone(rate=0.5)
    assert origin_of(copy, "rate") == (__file__, line() - 1)
    assert origin_of(copy, "width") == origin_of(config, "width")


def test_assignment_by_value_keeps_the_origins_inside() -> None:
    layer, set_on = FeedForward.Config(width=1), line()
    model = Model.Config(layer=layer, layers=[layer])
    built = model.build()
    for config in (model.layer, model.layers[0], built.config.layers[0]):
        assert origin_of(config, "width") == (__file__, set_on)
    assert origin_of(model, "layer") == (__file__, set_on + 1)


def test_values_in_a_class_body_know_their_line() -> None:
    file, number = origin_of(FeedForward.Config().up, "bias")
    assert file.endswith("components.py")
    assert number == inspect.getsourcelines(FeedForward.Config)[1] + 4


def test_modifiers_are_named(wide: int) -> None:
    changed = apply_modifier(Model.Config(), "test-wide:width=64")
    assert changed.layer.width == 64
    assert origin_of(changed.layer, "width") == (__file__, wide)
    assert str(changed.layer.get_origin("width")).endswith(
        f"test_provenance.py:{wide} (--with test-wide:width=64)"
    )
    assert "test-wide" in registered()


def test_overrides_are_quoted() -> None:
    config = apply_overrides(tree(), ["layers.0.width=12", "layer.up.bias=true"])
    assert str(config.layers[0].get_origin("width")) == "command line: layers.0.width=12"
    assert str(config.layer.up.get_origin("bias")) == "command line: layer.up.bias=true"


def test_replacement_carries_the_old_origin() -> None:
    old, set_on = FeedForward.Config(width=3), line()
    result = replace(Model.Config(layer=old), FeedForward, Simple.Config(activation="x"))
    assert origin_of(result.layer, "width") == (__file__, set_on)
    assert origin_of(result.layer, "activation") == (__file__, line() - 2)
    assert origin_of(result, "layer") == (__file__, line() - 3)


def test_a_wrapped_config_keeps_its_origins() -> None:
    old, set_on = FeedForward.Config(width=3), line()
    result = replace(Model.Config(layer=old), FeedForward, Mixture.Config())
    assert origin_of(result.layer.expert, "width") == (__file__, set_on)
    assert origin_of(result.layer, "expert") == (__file__, line() - 2)


def test_select_records_its_origin() -> None:
    result = select(tree(), FeedForward).set(width=2)
    assert origin_of(result.layers[0], "width") == (__file__, line() - 1)


def test_text_records_its_line() -> None:
    text = to_text(Model.Config(layer=FeedForward.Config(width=9), name="x"))
    assert from_text(text).get_origin("name") == Origin("config text", 3)
    assert from_text("# why\n\n" + text).get_origin("name") == Origin("config text", 5)


def test_through_nests_and_ends() -> None:
    with through("outer"), through("inner"):
        config = FeedForward.Config(width=1)
    origin = config.get_origin("width")
    assert origin is not None
    assert origin.through == ("outer", "inner")
    assert str(origin).endswith(" (outer, inner)")
    config.width = 2
    assert str(config.get_origin("width")).endswith(f"test_provenance.py:{line() - 1}")


def test_explain_says_the_origin_of_every_value() -> None:
    config = Model.Config(layer=FeedForward.Config(width=3), layers=[Linear.Config()])
    set_on = line() - 1
    config.weights["a"] = 1.0
    config = apply_overrides(config, ["steps=4"])
    found = {path: (value, origin) for path, value, origin in explain(config)}
    assert found[""] == ("tests.config.components:Model()", "the config itself")
    assert found["name"] == ("'model'", "default of Model")
    assert found["steps"] == ("4", "command line: steps=4")
    assert found["layer.width"] == ("3", f"tests/config/test_provenance.py:{set_on}")
    assert found["layer.rate"] == ("0.5", "default of FeedForward")
    assert found["layer.up.bias"][1].startswith("tests/config/components.py:")
    assert found["layers.0"][1] == f"tests/config/test_provenance.py:{set_on}"
    assert found["weights"] == ("{'a': 1.0}", "changed in place")
    assert list(found) == [entry.path for entry in explain(config.clone())]
    origins = json_origins(config)
    assert origins["steps"] == {"value": 4, "set_by": "command line: steps=4"}
    assert {path: each["set_by"] for path, each in origins.items()} == {
        path: origin for path, (_, origin) in found.items()
    }


def test_what_a_parent_sets_on_its_child_is_derived() -> None:
    assert derived_paths(FeedForward.Config()) == {"up.features"}
    assert derived_paths(FeedForward.Config(up=Linear.Config(features=2))) == set()
    assert derived_paths(Mixture.Config()) == set(), "its expert is really missing"


def test_explain_of_a_subtree_begins_there() -> None:
    paths = [entry.path for entry in explain(tree().layers[0])]
    assert paths == ["", "activation", "rate", "up", "up.bias", "up.features", "width"]
