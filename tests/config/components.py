"""Small components shared by the tests of configs: layers, wrappers and functions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal, Protocol

from dovetail.config import REQUIRED, Component, ConfigOf, register_function, wraps


class TokenMap(Protocol):
    def map(self, tokens: list[int]) -> list[int]: ...


class Activation(Protocol):
    def __call__(self, value: float) -> float: ...


@register_function
def double(value: float) -> float:
    return 2 * value


@register_function
def triple(value: float) -> float:
    return 3 * value


class Linear(Component):
    class Config(Component.Config["Linear"]):
        features: int = REQUIRED
        bias: bool = True

    def map(self, tokens: list[int]) -> list[int]:
        return tokens


class FeedForward(Component):
    class Config(Component.Config["FeedForward"]):
        width: int = 4
        rate: float = 0.5
        activation: Callable[..., Any] = double
        up: ConfigOf[TokenMap] = Linear.Config(bias=False)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.up = config.up.clone(features=config.width).build()

    def map(self, tokens: list[int]) -> list[int]:
        return self.up.map(tokens)


class GatedFeedForward(FeedForward):
    """Declares no Config, so it gets one of its own."""


class Mixture(Component):
    class Config(Component.Config["Mixture"]):
        experts: int = 2
        expert: ConfigOf[TokenMap] = wraps()

    def map(self, tokens: list[int]) -> list[int]:
        return tokens


class Adapter(Component):
    class Config(Component.Config["Adapter"]):
        rank: int = 8
        rate: int = 1
        width: int = 1
        base: ConfigOf[TokenMap] = wraps(Linear.Config())

    def map(self, tokens: list[int]) -> list[int]:
        return tokens


class Simple(Component):
    """A token map with a field like one of FeedForward's, and one with another type."""

    class Config(Component.Config["Simple"]):
        width: int = 1
        activation: str = "none"

    def map(self, tokens: list[int]) -> list[int]:
        return tokens


class Mute(Component):
    """No token map: it has no method `map`."""

    class Config(Component.Config["Mute"]):
        level: int = 0


class Awkward(Component):
    """No token map either: `map` cannot be called with one argument."""

    def map(self, tokens: list[int], mask: list[bool]) -> list[int]:
        return tokens


class Model(Component):
    class Config(Component.Config["Model"]):
        name: str = "model"
        note: str | None = None
        mode: Literal["fast", "exact", 3] = "fast"
        steps: int = 10
        scale: float | None = None
        shape: tuple[int, int] = (1, 2)
        axes: tuple[str, ...] = ()
        weights: dict[str, float] = {}
        table: dict[int, str] = {}
        anything: Any = None
        head: ConfigOf[TokenMap] | None = None
        layer: ConfigOf[TokenMap] = FeedForward.Config()
        layers: list[ConfigOf[TokenMap]] = []
        pair: tuple[ConfigOf[TokenMap], ...] = ()
        named: dict[str, ConfigOf[TokenMap]] = {}
        functions: list[Callable[..., Any]] = []
        nested: dict[str, list[ConfigOf[TokenMap]]] = {}


def tree() -> Model.Config:
    """Returns a config with feed-forwards in fields, lists, tuples, dicts and wrappers."""
    return Model.Config(
        layers=[FeedForward.Config(width=8), Linear.Config(features=2)],
        pair=(FeedForward.Config(), Mixture.Config(expert=FeedForward.Config(width=3))),
        named={"b": FeedForward.Config(rate=1.0), "a": Simple.Config()},
        nested={"x": [Linear.Config(), GatedFeedForward.Config(width=5)]},
    )


def without_address(value: object) -> str:
    """Names a test case the same in every process: a function's address is not part of it."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))
