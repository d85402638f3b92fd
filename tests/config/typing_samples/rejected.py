"""What type checkers must reject, each line that ends in `# wrong`: run by test_typing.py."""

from __future__ import annotations

from typing import Protocol

from dovetail.config import REQUIRED, Component, ConfigOf


class TokenMap(Protocol):
    def map(self, tokens: list[int]) -> list[int]: ...


class Linear(Component):
    class Config(Component.Config["Linear"]):
        features: int = REQUIRED

    def map(self, tokens: list[int]) -> list[int]:
        return tokens


class Mute(Component):
    class Config(Component.Config["Mute"]):
        level: int = 0


class Awkward(Component):
    class Config(Component.Config["Awkward"]):
        level: int = 0

    def map(self, tokens: list[int], mask: list[bool]) -> list[int]:
        return tokens


class FeedForward(Component):
    class Config(Component.Config["FeedForward"]):
        width: int = REQUIRED
        up: ConfigOf[TokenMap] = Linear.Config()
        down: ConfigOf[TokenMap] = Mute.Config()  # wrong


config = FeedForward.Config()
config.up = Mute.Config()  # wrong
config.up = Awkward.Config()  # wrong
config.up = Linear  # wrong
config.width = "four"  # wrong
FeedForward.Config(width="four")  # wrong
FeedForward.Config(widht=4)  # wrong
FeedForward.Config(4)  # wrong
FeedForward.Config(up=Mute.Config())  # wrong
linear: Linear = config.build()  # wrong
config.build().missing()  # wrong
other: ConfigOf[Linear] = config  # wrong
