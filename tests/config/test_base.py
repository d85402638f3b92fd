"""Fields, by-value assignment, REQUIRED, building, and Python's own protocols."""

from __future__ import annotations

import copy
import math
import operator
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dovetail.config import (
    REQUIRED,
    Component,
    Config,
    ConfigError,
    config_for,
    to_text,
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
    double,
    tree,
)


class TestDeclaration:
    def test_fields_are_inherited_in_order_and_defaults_can_be_set_anew(self) -> None:
        class Wide(FeedForward):
            class Config(FeedForward.Config):
                width = 100
                depth: int = 2

        assert list(Wide.Config.fields()) == ["width", "rate", "activation", "up", "depth"]
        assert Wide.Config().width == 100
        assert FeedForward.Config().width == 4

    def test_a_component_without_a_config_gets_its_own(self) -> None:
        assert GatedFeedForward.Config is not FeedForward.Config
        assert type(GatedFeedForward.Config().build()) is GatedFeedForward
        assert type(FeedForward.Config().build()) is FeedForward

    def test_a_component_of_two_bases_has_the_fields_of_both(self) -> None:
        class Both(Simple, Mute):
            pass

        assert {"width", "activation", "level"} <= set(Both.Config.fields())

    def test_a_config_belongs_to_one_part(self) -> None:
        with pytest.raises(ConfigError, match=r"Stolen.Config is already the Config of another"):

            class Stolen(FeedForward):
                Config = FeedForward.Config

        assert type(FeedForward.Config().build()) is FeedForward

    def test_a_config_must_extend_that_of_the_base(self) -> None:
        with pytest.raises(ConfigError, match=r"Config must extend FeedForward.Config"):

            class Other(FeedForward):
                class Config(Component.Config["Other"]):  # type: ignore[assignment]
                    x: int = 1

    @pytest.mark.parametrize("name", ["set", "clone", "build", "fields", "tree_path"])
    def test_a_field_cannot_be_named_like_a_method(self, name: str) -> None:
        with pytest.raises(ConfigError, match=f"the field '{name}' has the name of a method"):
            type(Linear.Config)(
                "Config", (Linear.Config,), {"__annotations__": {name: int}, name: 1}
            )

    def test_a_field_needs_a_type(self) -> None:
        with pytest.raises(ConfigError, match=r"Config.depth: a field needs a type. Write `depth:"):

            class Untyped(Component):
                class Config(Component.Config["Untyped"]):
                    depth = 2

    def test_class_variables_private_names_and_methods_are_no_fields(self) -> None:
        class Odd(Component):
            class Config(Component.Config["Odd"]):
                kind: ClassVar[str] = "odd"
                _hidden = 3
                size: int = 2

                @property
                def twice(self) -> int:
                    return 2 * self.size

        assert list(Odd.Config.fields()) == ["size"]
        assert Odd.Config(size=4).twice == 8

    def test_a_wrong_default_is_found_when_the_class_is_first_used(self) -> None:
        class Wrong(Component):
            class Config(Component.Config["Wrong"]):
                width: int = "four"  # type: ignore[assignment]

        with pytest.raises(ConfigError, match=r"Wrong.Config \(default of a field\): width: exp"):
            Wrong.Config()

    def test_an_unresolvable_type_says_what_to_do(self) -> None:
        class Lost(Component):
            class Config(Component.Config["Lost"]):
                child: Nowhere = REQUIRED  # type: ignore[name-defined]  # noqa: F821

        config = Lost.Config()
        with pytest.raises(ConfigError, match=r"'Nowhere' is not defined. Import that name"):
            config.child = 3

    def test_defaults_take_the_declared_type(self) -> None:
        class Converted(Component):
            class Config(Component.Config["Converted"]):
                rate: float = 1

        assert type(Converted.Config().rate) is float


class TestByValue:
    def test_default_children_are_copied_per_instance(self) -> None:
        one, two = FeedForward.Config(), FeedForward.Config()
        one.up.bias = True
        assert two.up.bias is False
        assert FeedForward.Config().up.bias is False

    def test_a_default_is_a_copy_of_what_was_declared(self) -> None:
        shared = Linear.Config()

        class Holder(Component):
            class Config(Component.Config["Holder"]):
                left: Any = shared
                right: Any = shared

        shared.bias = False
        assert Holder.Config().left.bias is True

    def test_assignment_copies(self) -> None:
        layer = FeedForward.Config()
        model = Model.Config(layer=layer, layers=[layer, layer])
        layer.width = 99
        model.layers[0].width = 7
        assert [model.layer.width, *(item.width for item in model.layers)] == [4, 7, 4]

    def test_a_components_config_is_its_own(self) -> None:
        config = FeedForward.Config()
        part = config.build()
        config.width = 50
        assert part.config.width == 4

    def test_clone_sets_on_the_copy_only(self) -> None:
        config = FeedForward.Config()
        assert config.clone(width=9).width == 9
        assert config.width == 4

    def test_set_returns_the_config_itself(self) -> None:
        config = FeedForward.Config()
        assert config.set(width=9) is config

    @pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy])
    def test_copy_and_deepcopy_clone(self, copier: Callable[[Any], Any]) -> None:
        config = tree()
        duplicate = copier(config)
        duplicate.layers[0].width = 77
        assert duplicate != config
        assert config == tree()

    def test_pickle_keeps_values_and_origins(self) -> None:
        config = tree().set(anything=config_for(double, value=2.0), note=None)
        again = pickle.loads(pickle.dumps(config))
        assert again == config
        assert again.get_origin("layers") == config.get_origin("layers")
        assert again.layers[0].tree_path() == "layers.0"
        assert again.anything.build() == 4.0
        assert pickle.loads(pickle.dumps(REQUIRED)) is REQUIRED


class TestChangedInPlace:
    def test_a_wrong_item_is_found_at_the_next_use(self) -> None:
        for use in (Model.Config.clone, Model.Config.build, to_text):
            config = Model.Config(layers=[Linear.Config()])
            config.layers.append("wrong")  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match=r"layers.1: expected a config .* got 'wrong'"):
                use(config)

    def test_a_wrong_item_deep_inside_is_found_with_its_path(self) -> None:
        config = Model.Config(nested={"x": []}, layer=Mixture.Config(expert=Linear.Config()))
        config.nested["x"].append(3)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"nested.x.0: expected a config that builds a"):
            config.clone()

    def test_an_appended_config_is_taken_in_by_value(self) -> None:
        layer = FeedForward.Config()
        config = Model.Config()
        config.layers.append(layer)
        config.layers.append(layer)
        layers = config.layers
        to_text(config)
        assert config.layers is layers
        layer.width = 99
        assert [item.width for item in config.layers] == [4, 4]
        assert [item.tree_path() for item in config.layers] == ["layers.0", "layers.1"]
        assert config.layers[0] is not config.layers[1]

    def test_an_item_that_moves_stays_the_same_config(self) -> None:
        config = Model.Config(layers=[Linear.Config(), FeedForward.Config()])
        moved = config.layers[1]
        config.layers.insert(0, Simple.Config())
        config.clone()
        assert config.layers[2] is moved
        assert moved.tree_path() == "layers.2"

    def test_a_config_at_another_path_is_copied(self) -> None:
        config = Model.Config()
        config.layers.append(config.layer)
        config.clone()
        config.layers[0].set(width=11)
        assert config.layer.width == 4

    def test_numbers_are_converted_and_counted_as_set(self) -> None:
        config = Model.Config()
        config.weights["a"] = 1
        assert config.is_set("weights")
        assert config.clone().weights == {"a": 1.0}
        assert type(config.weights["a"]) is float


class TestDicts:
    def test_dicts_are_sorted_by_their_keys(self) -> None:
        config = Model.Config(weights={"b": 1.0, "10": 2.0, "a": 3.0, "2": 4.0})
        assert list(config.weights) == ["2", "10", "a", "b"]

    def test_keys_of_configs_become_paths(self) -> None:
        for key in ("a.b", "", "a b", "x="):
            with pytest.raises(ConfigError, match="cannot be a piece of a path"):
                Model.Config(named={key: Linear.Config()})


class TestRequired:
    @pytest.mark.parametrize(
        "use",
        [
            bool, int, float, complex, len, iter, next, list, abs, round, math.floor, math.ceil,
            operator.index, operator.neg, str.format.__get__("{}"), "{:d}".format, sum, range,
            lambda r: r + 1, lambda r: 1 + r, lambda r: r * 2, lambda r: 2 / r, lambda r: r // 2,
            lambda r: 7 % r, lambda r: r**2, lambda r: 1 << r, lambda r: r @ r,
            lambda r: divmod(7, r),
            lambda r: r < 1, lambda r: r >= 1, lambda r: r == 1, lambda r: r != 1, [1].index,
            lambda r: r[0], lambda r: 1 in r, lambda r: r(), lambda r: r.shape, lambda r: f"{r}",
            lambda r: operator.setitem(r, 0, 1), lambda r: [1, 2][r], Path,
        ],
    )  # fmt: skip
    def test_fails_loudly_on_every_use(self, use: Callable[[Any], Any]) -> None:
        with pytest.raises(ConfigError, match="REQUIRED config value was used before it was set"):
            use(REQUIRED)

    def test_arrays_cannot_be_made_of_it(self) -> None:
        import numpy

        with pytest.raises(ConfigError, match="REQUIRED"):
            numpy.asarray(REQUIRED)

    def test_can_be_shown_copied_and_compared_with_itself(self) -> None:
        assert repr(REQUIRED) == str(REQUIRED) == "REQUIRED"
        assert copy.copy(REQUIRED) is copy.deepcopy(REQUIRED) is REQUIRED
        assert REQUIRED == REQUIRED
        assert not hasattr(REQUIRED, "_repr_pretty_")

    def test_build_lists_everything_that_is_missing_with_its_path(self) -> None:
        class Needy(Component):
            class Config(Component.Config["Needy"]):
                first: int = REQUIRED
                second: str = REQUIRED
                third: Any = None

        model = Model.Config(anything=[Needy.Config(third=[1, REQUIRED])])
        with pytest.raises(ConfigError) as caught:
            model.anything[0].build()
        assert str(caught.value).startswith(
            "Needy cannot be built. Required and not set: anything.0.first, anything.0.second, "
            "anything.0.third.1. Set each"
        )

    def test_a_childs_required_fields_may_be_set_by_its_parent(self) -> None:
        assert FeedForward.Config(width=7).build().up.config.features == 7

    def test_a_field_can_be_made_required_again(self) -> None:
        with pytest.raises(ConfigError, match="width"):
            FeedForward.Config(width=REQUIRED).build()


class TestBuilding:
    def test_a_config_of_no_component_says_so(self) -> None:
        class Loose(Config[int]):
            x: int = 1

        with pytest.raises(ConfigError, match="Loose is not the Config of any Component"):
            Loose().build()
        with pytest.raises(ConfigError, match=r"Loose has no field 'y'. Known: x"):
            Loose(y=2)  # type: ignore[call-arg]

    def test_an_error_in_a_childs_copy_names_the_childs_path(self) -> None:
        model = Model.Config(layers=[FeedForward.Config(up=Simple.Config())])
        with pytest.raises(ConfigError, match=r"^layers.0.up.features: Simple has no field"):
            model.layers[0].build()


class TestAttributes:
    def test_fields_are_listed_and_unknown_ones_are_absent(self) -> None:
        config = FeedForward.Config()
        assert {"width", "rate", "clone"} <= set(dir(config))
        assert not hasattr(config, "depth")
        assert getattr(config, "depth", None) is None

    def test_a_field_cannot_be_deleted(self) -> None:
        with pytest.raises(ConfigError, match="width: a config field cannot be deleted"):
            del FeedForward.Config().width

    def test_repr_shows_what_differs(self) -> None:
        assert repr(FeedForward.Config(width=4, rate=0.25)) == "FeedForward.Config(rate=0.25)"

    def test_equality_is_by_class_and_value(self) -> None:
        assert FeedForward.Config(width=4) == FeedForward.Config()
        assert FeedForward.Config() != GatedFeedForward.Config()
        assert FeedForward.Config() != "config"
        assert Model.Config(anything=1) != Model.Config(anything=True)
        assert Model.Config(anything=1) != Model.Config(anything=1.0)
        assert Model.Config(anything=[math.nan]) == Model.Config(anything=[float("nan")])
        assert Model.Config(anything=0.0) != Model.Config(anything=-0.0)

    def test_configs_cannot_be_hashed(self) -> None:
        with pytest.raises(TypeError, match="unhashable"):
            hash(Linear.Config())


class TestExplicit:
    def test_what_was_set_is_explicit_even_at_its_default(self) -> None:
        assert list(FeedForward.Config(width=4).explicit()) == ["width"]
        assert FeedForward.Config().explicit() == {}

    def test_a_child_counts_as_set_when_something_inside_was_set(self) -> None:
        config = FeedForward.Config()
        assert not config.is_set("up")
        config.up.bias = False  # its default there
        assert config.is_set("up")
        assert Adapter.Config().is_set("base") is False
