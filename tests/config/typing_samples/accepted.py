"""What type checkers must accept, and understand: run by test_typing.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, assert_type

from dovetail.config import (
    REQUIRED,
    Component,
    ConfigOf,
    config_for,
    incidental,
    replace,
    select,
    wraps,
)


class TokenMap(Protocol):
    def map(self, tokens: list[int]) -> list[int]: ...


class Linear(Component):
    class Config(Component.Config["Linear"]):
        features: int = 2
        bias: bool = True

    def map(self, tokens: list[int]) -> list[int]:
        return tokens


class FeedForward(Component):
    class Config(Component.Config["FeedForward"]):
        width: int = 4
        activation: Callable[[float], float] = abs
        up: ConfigOf[TokenMap] = Linear.Config()
        others: list[ConfigOf[TokenMap]] = []
        every: int = incidental(10)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.up = config.up.build()

    def map(self, tokens: list[int]) -> list[int]:
        return self.up.map(tokens)


class Mixture(Component):
    class Config(Component.Config["Mixture"]):
        experts: int = REQUIRED
        expert: ConfigOf[TokenMap] = wraps()
        shared: ConfigOf[TokenMap] = wraps(Linear.Config())

    def map(self, tokens: list[int]) -> list[int]:
        return tokens


def schedule(start: float, steps: int = 10) -> list[float]:
    return [start] * steps


assert_type(FeedForward.Config().build(), FeedForward)
assert_type(FeedForward.Config(width=4).set(width=3).clone(width=2).build(), FeedForward)
assert_type(FeedForward.Config(width=4).width, int)
assert_type(FeedForward.Config().up, ConfigOf[TokenMap])
assert_type(FeedForward.Config().up.build(), TokenMap)
assert_type(config_for(schedule, start=1.0), ConfigOf[list[float]])
assert_type(replace(FeedForward.Config(), Linear, Mixture.Config(experts=2)), FeedForward.Config)
assert_type(select(FeedForward.Config(), Linear).set(bias=False), FeedForward.Config)

config = FeedForward.Config(up=Mixture.Config(experts=2), others=[Linear.Config(bias=False)])
config.up = FeedForward.Config(width=3)
config.width = 5
general: ConfigOf[TokenMap] = config
loose: ConfigOf[Any] = general
part: Component = config.build()
print(type(part).__name__, config.width)
