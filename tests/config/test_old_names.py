"""Old names in saved text: every component, field and function of before the renaming loads.

`old_names.json` lists the names as they were then; it does not change.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import dovetail
from dovetail.config import (
    Component,
    ConfigError,
    apply_overrides,
    from_text,
    import_submodules,
    modifiers,
    to_text,
)
from dovetail.config import registry as registry_module
from dovetail.config.functions import config_class_for
from dovetail.config.old_names import (
    OLD_ARGUMENTS,
    OLD_CLASSES,
    OLD_FIELDS,
    OLD_FUNCTIONS,
    OLD_KEYS,
    OLD_MODIFIERS,
)
from dovetail.config.registry import find_function, function_name
from tests.config.components import FeedForward, Model

OLD = json.loads((Path(__file__).parent / "old_names.json").read_text())
SUBPACKAGES = sorted({name.split(".")[1] for name in OLD["components"]})


@pytest.fixture(scope="module", autouse=True)
def everything() -> None:
    for name in (*SUBPACKAGES, "features", "run"):
        import_submodules(f"dovetail.{name}")


@pytest.mark.parametrize("name", OLD["components"])
def test_a_component_and_its_fields_load(name: str) -> None:
    fields = [f"{field} = REQUIRED" for field in OLD["components"][name]]
    config = from_text("\n".join([f"{name}()", *fields]))
    moved = {"InitFromRun": "run", "InitSubmoduleFromRun": "run"}
    subpackage = moved.get(type(config).builds().__name__, name.split(".")[1])
    assert to_text(config).startswith(f"dovetail.{subpackage}:")
    assert from_text(to_text(config)) == config


@pytest.mark.parametrize("name", OLD["functions"])
def test_a_function_is_found(name: str) -> None:
    function = find_function(name, "")
    assert config_class_for(name) is config_class_for(function_name(function))


def own(name: str) -> Any:
    """Returns the package's class of a name; classes of tests may share it."""
    known = registry_module._components.registered().items()
    (found,) = [
        each for full, each in known if full.startswith("dovetail.") and full.endswith(f":{name}")
    ]
    return found


def test_the_tables_name_what_exists() -> None:
    for new in OLD_CLASSES.values():
        own(new.rpartition(":")[2])
    for (owner, old), new in OLD_FIELDS.items():
        config = own(owner).Config
        assert old not in config.fields(), f"{owner}.{old} is a field again"
        assert config._renamed_field(old) in config.fields(), (owner, new)
    for owner, field, _ in OLD_KEYS:
        assert field in own(owner).Config.fields()
    for new in OLD_FUNCTIONS.values():
        find_function(new.rpartition(":")[2], "", by_short_name=True)
    for old, new in OLD_MODIFIERS.items():
        assert new in modifiers()
        assert old not in modifiers(), f"{old} is a modifier again"
    for (name, old), new in OLD_ARGUMENTS.items():
        arguments = inspect.signature(modifiers()[name]).parameters
        assert new in arguments, (name, new)
        assert old not in arguments, f"{name}:{old} is an argument again"


@pytest.fixture
def renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OLD_FIELDS, ("FeedForward", "size"), "width")
    monkeypatch.setitem(OLD_CLASSES, "Perceptron", "FeedForward")


@pytest.mark.usefixtures("renamed")
def test_an_old_field_on_the_command_line_is_answered_with_the_new_one() -> None:
    with pytest.raises(ConfigError, match=r"layer.size: .* no field 'size'. It was renamed to 'wi"):
        apply_overrides(Model.Config(layer=FeedForward.Config()), ["layer.size=3"])
    with pytest.raises(ConfigError, match="'Perceptron' was renamed to 'FeedForward'"):
        apply_overrides(Model.Config(), ["layer=Perceptron"])


@pytest.mark.usefixtures("renamed")
def test_an_old_field_in_text_is_read_unless_the_new_one_is_set_too() -> None:
    name = "tests.config.components:FeedForward()"
    assert from_text(f"{name}\nsize = 3") == FeedForward.Config(width=3)
    with pytest.raises(ConfigError, match="size was renamed to 'width', which is also set"):
        from_text(f"{name}\nsize = 3\nwidth = 3")


def test_old_keys_of_a_dict_are_read() -> None:
    (owner, field, old), new = next(iter(OLD_KEYS.items()))
    config = from_text(f"dovetail.parallel:{owner}()\n{field} = {{'{old}': ('fsdp',)}}")
    assert config == own(owner).Config(**{field: {new: ("fsdp",)}})


@pytest.mark.parametrize(("old", "new"), OLD_MODIFIERS.items())
def test_a_modifier_applies_by_its_old_name(old: str, new: str) -> None:
    plain = dovetail.experiment("tiny-lm")
    changed = plain.with_features(new).config
    assert plain.with_features(old).config == changed != plain.config
    # As a run records it, and as it is read again.
    about = plain.with_features(old).about()
    assert dovetail.experiment("tiny-lm").with_features(*about["features"]).config == changed


def test_two_classes_of_a_subpackage_may_not_share_a_name() -> None:
    namespace = {"__module__": "dovetail.module.first", "__qualname__": "Twin"}
    with registry_module._components.restored():
        type("Twin", (Component,), dict(namespace))
        with pytest.raises(ConfigError, match=r"defined in dovetail.module.first and again in"):
            type("Twin", (Component,), {**namespace, "__module__": "dovetail.module.second"})
