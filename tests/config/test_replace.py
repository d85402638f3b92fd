"""replace(), select() and visit(): what is found, what is carried over, what is reported."""

from __future__ import annotations

from typing import Any, Protocol

import pytest

from dovetail.config import (
    REQUIRED,
    Component,
    ConfigError,
    ConfigOf,
    collect_reports,
    config_for,
    opaque,
    replace,
    select,
    value_at,
    visit,
    wraps,
)
from tests.config.components import (
    Adapter,
    FeedForward,
    GatedFeedForward,
    Linear,
    Mixture,
    Model,
    Mute,
    Simple,
    TokenMap,
    double,
    tree,
    triple,
)


class Guest(Component):
    """Has an opaque child."""

    class Config(Component.Config["Guest"]):
        own: ConfigOf[TokenMap] = FeedForward.Config()
        visitor: ConfigOf[TokenMap] = opaque(FeedForward.Config())


def test_opaque_children_are_left_alone() -> None:
    config = Guest.Config()
    result = replace(config, FeedForward, Simple.Config())
    assert (type(result.own), result.visitor) == (Simple.Config, config.visitor)
    assert list(select(config, FeedForward).found) == ["own"]
    assert select(config, Linear).set(bias=True).visitor == config.visitor
    assert {"visitor", "visitor.up"} <= {path for path, _ in visit(config)}
    with pytest.raises(ConfigError, match="No config in this tree builds a FeedForward"):
        replace(result, FeedForward, Simple.Config())


FOUND = ["layer", "layers.0", "pair.0", "pair.1.expert", "named.b", "nested.x.1"]


class TestReplace:
    def test_finds_configs_in_lists_tuples_and_dicts(self) -> None:
        with collect_reports() as reports:
            result = replace(tree(), FeedForward, Simple.Config())
        assert reports[0].replaced == FOUND
        assert str(reports[0]).startswith("replaced 6 FeedForward")
        assert not [found for _, found in visit(result) if isinstance(found, FeedForward.Config)]

    def test_does_not_change_its_arguments(self) -> None:
        config, new = tree(), Mixture.Config()
        result = replace(config, FeedForward, new)
        result.layer.experts = 50
        assert config == tree()
        assert new == Mixture.Config()

    def test_wraps_receives_the_entire_old_config(self) -> None:
        result = replace(tree(), FeedForward, Mixture.Config(experts=8))
        for path in FOUND:
            assert value_at(result, path).experts == 8
            assert value_at(result, f"{path}.expert") == value_at(tree(), path)

    def test_the_result_is_not_searched_again(self) -> None:
        result = replace(tree(), Mixture, Mixture.Config(experts=5))
        assert isinstance(result.pair[1].expert, Mixture.Config)
        assert isinstance(result.pair[1].expert.expert, FeedForward.Config)

    def test_what_is_inside_of_a_kind_can_be_left_as_it_is(self) -> None:
        with collect_reports() as reports:
            result = replace(tree(), FeedForward, Simple.Config(), outside=(Mixture,))
        assert reports[0].replaced == [path for path in FOUND if path != "pair.1.expert"]
        assert result.pair[1] == tree().pair[1]

    def test_a_kind_to_leave_as_it_is_must_be_one(self) -> None:
        with pytest.raises(ConfigError, match=r"expected a class.*Leave out .Config"):
            replace(tree(), FeedForward, Simple.Config(), outside=(Mixture.Config(),))

    def test_explicit_fields_that_fit_are_carried_over(self) -> None:
        old = FeedForward.Config(width=7, activation=triple)
        with collect_reports() as reports:
            result = replace(Model.Config(layer=old), FeedForward, Simple.Config())
        assert result.layer == Simple.Config(width=7)
        assert reports[0].dropped == ["layer.activation"]
        assert "no such fields: layer.activation" in str(reports[0])

    def test_what_the_new_config_sets_stands(self) -> None:
        old = FeedForward.Config(width=7)
        with collect_reports() as reports:
            result = replace(Model.Config(layer=old), FeedForward, Simple.Config(width=1))
        assert result.layer.width == 1
        assert reports[0].dropped == []

    def test_required_is_no_value_to_carry_over(self) -> None:
        config = Model.Config(layer=FeedForward.Config(width=REQUIRED, rate=REQUIRED))
        result = replace(config, FeedForward, Simple.Config(), strict=True)
        assert result.layer == Simple.Config()

    def test_defaults_are_not_carried_over(self) -> None:
        assert replace(Model.Config(), FeedForward, Simple.Config()).layer.width == 1

    def test_a_value_set_to_its_default_is_carried_over(self) -> None:
        config = Model.Config(layer=FeedForward.Config(width=4))
        assert replace(config, FeedForward, Simple.Config()).layer.width == 4

    def test_values_declared_in_a_class_body_are_carried_over(self) -> None:
        result = replace(FeedForward.Config(), Linear, FeedForward.Config())
        assert not hasattr(result.up, "bias")

        class Sparse(Linear):
            pass

        assert replace(FeedForward.Config(), Linear, Sparse.Config()).up.bias is False

    def test_a_changed_child_is_carried_over(self) -> None:
        old = FeedForward.Config()
        old.up.bias = True
        result = replace(Model.Config(layer=old), FeedForward, GatedFeedForward.Config())
        assert result.layer.up.bias is True

    def test_a_wrapper_takes_over_what_it_declares_too(self) -> None:
        old = FeedForward.Config(width=7, rate=0.25)
        with collect_reports() as reports:
            result = replace(Model.Config(layer=old), FeedForward, Adapter.Config())
        assert result.layer == Adapter.Config(width=7, base=old)  # its `rate` is an int
        assert reports[0].dropped == []

    def test_a_wrapper_that_brings_its_own_inside_wraps_nothing(self) -> None:
        config = Model.Config(layer=FeedForward.Config(width=7, rate=0.25))
        new = Mixture.Config(expert=Linear.Config(features=1))
        with collect_reports() as reports:
            result = replace(config, FeedForward, new)
        assert result.layer == new
        assert reports[0].dropped == ["layer.width", "layer.rate"]

    def test_a_wrapper_stays_when_what_it_wraps_is_replaced(self) -> None:
        """Both orders of two modifiers give the same."""
        plain = Model.Config(layer=FeedForward.Config(width=7))
        swapped = replace(plain, TokenMap, Simple.Config())
        expected = replace(swapped, TokenMap, Adapter.Config(rank=2))
        assert isinstance(expected.layer, Adapter.Config)
        wrapped = replace(plain, TokenMap, Adapter.Config(rank=2))
        with collect_reports() as reports:
            result = replace(wrapped, TokenMap, Simple.Config())
        assert reports[0].replaced == ["layer.base"]
        assert result.layer.base == Simple.Config(width=7)
        assert (result.layer.rank, expected.layer.rank) == (2, 2)
        assert result.layer.base == expected.layer.base

    def test_every_wrapper_around_what_is_replaced_stays(self) -> None:
        inner = Mixture.Config(expert=FeedForward.Config())
        config = Model.Config(layer=Adapter.Config(base=inner))
        result = replace(config, TokenMap, Simple.Config())
        assert result.layer == Adapter.Config(base=Mixture.Config(expert=Simple.Config()))
        assert config.layer.base == inner

    def test_a_wrapper_of_another_kind_inside_is_replaced_as_a_whole(self) -> None:
        config = Model.Config(layer=Mixture.Config(expert=FeedForward.Config()))
        assert replace(config, Mixture, Simple.Config()).layer == Simple.Config()

    def test_a_wrapper_or_a_function_receives_the_outer_wrapper(self) -> None:
        config = Model.Config(layer=Adapter.Config(base=FeedForward.Config()))
        result = replace(config, TokenMap, Mixture.Config())
        assert result.layer == Mixture.Config(expert=config.layer)
        assert replace(config, TokenMap, lambda old: old.set(rank=3)).layer.rank == 3

    def test_strict_makes_dropped_fields_an_error(self) -> None:
        config = Model.Config(layer=FeedForward.Config(rate=0.1))
        with pytest.raises(
            ConfigError, match=r"no such fields as these, which are set: layer.rate. Leave"
        ):
            replace(config, FeedForward, Simple.Config(), strict=True)
        replace(config, FeedForward, Mixture.Config(), strict=True)

    def test_a_function_makes_each_replacement(self) -> None:
        def doubled(old: Any) -> Any:
            return Simple.Config(width=2 * old.width)

        result = replace(tree(), FeedForward, doubled)
        assert [value_at(result, path).width for path in FOUND] == [8, 16, 8, 6, 8, 10]

    def test_a_function_that_changes_what_it_got_harms_nothing(self) -> None:
        def careless(old: Any) -> Any:
            old.width = 1000
            return old

        config = tree()
        assert replace(config, FeedForward, careless).layer.width == 1000
        assert config == tree()

    def test_the_root_itself_can_be_replaced(self) -> None:
        result: Any = replace(FeedForward.Config(width=3), FeedForward, Mixture.Config())
        assert result.expert.width == 3
        assert result.tree_path() == ""

    def test_by_config_class_interface_and_function(self) -> None:
        assert isinstance(replace(tree(), FeedForward.Config, Simple.Config()).layer, Simple.Config)
        with collect_reports() as reports:
            replace(tree(), TokenMap, Simple.Config())
        assert len(reports[0].replaced) == 9
        config = Model.Config(anything=config_for(double, value=1.5))
        changed = replace(config, double, config_for(triple))
        assert changed.anything.build() == 4.5

    def test_a_path_inside_a_larger_tree_begins_at_the_argument(self) -> None:
        with collect_reports() as reports:
            replace(tree().pair[1], FeedForward, Simple.Config())
        assert reports[0].replaced == ["expert"]

    def test_fields_that_hold_a_change_deeper_down_stay_unset(self) -> None:
        config = Model.Config(head=Mixture.Config(expert=FeedForward.Config()))
        assert not replace(config, FeedForward, Simple.Config()).is_set("layers")

    def test_reports_do_not_leak(self) -> None:
        with collect_reports() as outer:
            with collect_reports() as inner:
                replace(tree(), FeedForward, Simple.Config())
            replace(tree(), Linear, Simple.Config())
        assert (len(outer), len(inner)) == (1, 1)


class Nowhere(Protocol):
    def vanish(self) -> None: ...


class TestMistakes:
    @pytest.mark.parametrize("kind", [Mute, Nowhere, Mute.Config, triple])
    def test_nothing_replaced_is_an_error(self, kind: Any) -> None:
        with pytest.raises(ConfigError, match="No config in this tree builds a"):
            replace(tree(), kind, Simple.Config())

    def test_the_nearest_kind_is_named(self) -> None:
        class FeedForwards(Component):
            pass

        with pytest.raises(ConfigError, match=r"Did you mean .*'FeedForward'"):
            replace(tree(), FeedForwards, Simple.Config())

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            (FeedForward, Mixture, r"got the class Mixture; use Mixture.Config\(...\)"),
            (FeedForward, Mixture.Config, r"got the class Mixture.Config; call it"),
            (FeedForward, 3, r"expected a config, or a function .* got 3 \(int\)"),
            (FeedForward.Config(), Simple.Config(), r"expected a class, got a FeedForward config"),
            ("FeedForward", Simple.Config(), "expected a class or function, got 'FeedForward'"),
            (FeedForward, lambda old: None, "layer: the replacement function returned None"),
            (
                FeedForward,
                Mute.Config(),
                r"layer: expected a config that builds a TokenMap, got",
            ),
        ],
    )
    def test_what_cannot_be_meant(self, old: Any, new: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            replace(Model.Config(), old, new)

    def test_a_wrapper_that_cannot_take_the_old_config(self) -> None:
        class Narrow(Component):
            class Config(Component.Config["Narrow"]):
                inner: Mute.Config = wraps()

            def map(self, tokens: list[int]) -> list[int]:
                return tokens

        with pytest.raises(ConfigError, match=r"^layers.0.inner: expected a Mute.Config, got"):
            replace(tree().clone(layer=Simple.Config()), FeedForward, Narrow.Config())


class TestSelect:
    def test_sets_on_all_of_a_kind_in_a_copy(self) -> None:
        config = tree()
        result = select(config, FeedForward).set(width=1)
        assert [value_at(result, path).width for path in FOUND] == [1] * 6
        assert config == tree()

    def test_can_be_counted_and_walked(self) -> None:
        selection = select(tree(), FeedForward)
        assert len(selection) == 6
        assert list(selection.found) == FOUND
        assert all(isinstance(found, FeedForward.Config) for found in selection)

    def test_nothing_found_is_an_error(self) -> None:
        with pytest.raises(ConfigError, match="No config in this tree builds a Mute"):
            select(tree(), Mute).set(level=1)

    def test_the_result_is_free_of_the_selection(self) -> None:
        selection = select(tree(), FeedForward)
        result = selection.set(width=1)
        next(iter(selection)).set(width=2)
        assert result.layer.width == 1

    def test_a_wrong_field_names_the_path(self) -> None:
        with pytest.raises(ConfigError, match=r"^layer.widht: FeedForward has no field"):
            select(tree(), FeedForward).set(widht=1)


def test_visit_yields_parents_first_with_paths() -> None:
    paths = [path for path, _ in visit(tree())]
    assert paths[:3] == ["", "layer", "layer.up"]
    assert paths.index("pair.1") < paths.index("pair.1.expert") < paths.index("pair.1.expert.up")
    assert {value_at(tree(), path).tree_path() for path in paths[1:]} == set(paths[1:])


def test_visit_finds_what_was_appended_in_place() -> None:
    config = tree()
    config.layers.append(Simple.Config(width=5))
    assert "layers.2" in [path for path, _ in visit(config)]
