"""An interface may require properties; a class without one is refused by a sentence."""

from typing import Protocol

import pytest

from dovetail.config import Component, ConfigError, ConfigOf


class Sized(Protocol):
    @property
    def vocab_size(self) -> int: ...


class Holder(Component):
    class Config(Component.Config["Holder"]):
        child: ConfigOf[Sized] | None = None


class ByProperty(Component):
    @property
    def vocab_size(self) -> int:
        return 3


class ByAttribute(Component):
    def __init__(self, config):
        super().__init__(config)
        self.vocab_size = 3


class Inherited(ByAttribute):
    pass


class Without(Component):
    def size(self) -> int:
        return 3


@pytest.mark.parametrize("kind", [ByProperty, ByAttribute, Inherited])
def test_a_property_an_attribute_or_an_inherited_one_will_do(kind):
    Holder.Config(child=kind.Config())


def test_a_missing_property_is_named():
    with pytest.raises(ConfigError, match="Without has no property or attribute 'vocab_size'"):
        Holder.Config(child=Without.Config())
