"""Which identifiers name a feature: whole words, in snake_case and in CamelCase.

`rope` is in `apply_rope`, `RopeScaling` and `useRope`, and in neither `europe` nor `property`. A
name of several words is matched as a run of them: `freqs_cis` is in `precompute_freqs_cis`.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from dovetail.config import ConfigError

_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")

Phrase = tuple[str, ...]


def split_words(identifier: str) -> Phrase:
    """Splits an identifier into its words, in lower case; digits are words of their own."""
    return tuple(word.lower() for word in _WORD.findall(identifier))


class Vocabulary:
    """The words by which a feature is known."""

    def __init__(self, name: str, words: Iterable[str], unless: Iterable[str] = ()) -> None:
        self.name = name
        self.words = tuple(words)
        self._phrases = frozenset(filter(None, map(split_words, self.words)))
        self._unless = frozenset(filter(None, map(split_words, unless)))
        self._struck: tuple[Phrase, ...] = ()
        # The same identifiers come up a hundred thousand times in a code base.
        self._known: dict[str, bool] = {}
        if not self._phrases:
            raise ConfigError(f"the feature {name!r} has no words; give some: --words rope,rotary")

    def striking(self, names: Collection[Phrase]) -> Vocabulary:
        """Returns a vocabulary that passes over names which only hold a word of the feature.

        Every class of a model called `qwen3_moe` has `Moe` in its name; only what does so beside
        the model's name is about the feature. A name that begins with the word is the feature's.
        """
        starts = [name for name in names if any(name[: len(p)] == p for p in self._phrases)]
        struck = [name for name in {*names} - {*starts} if _holds(name, self._phrases)]
        copy = Vocabulary(self.name, self.words)
        copy._unless = self._unless
        copy._struck = tuple(sorted(struck, key=len, reverse=True))
        return copy

    def names(self, identifier: str) -> bool:
        """Says whether the identifier holds one of the words."""
        if identifier not in self._known:
            words = _strike(split_words(identifier), self._struck)
            self._known[identifier] = _holds(words, self._phrases) and not _holds(
                words, self._unless
            )
        return self._known[identifier]

    def names_any(self, identifiers: Iterable[str]) -> bool:
        """Says whether any of the identifiers holds one of the words."""
        return any(self.names(identifier) for identifier in identifiers)

    @functools.cached_property
    def pattern(self) -> str:
        """An extended regular expression that is true at least wherever a word stands.

        It is for passing over text quickly, without regard to case; `names` decides.
        """
        return "|".join(sorted("[_-]?".join(phrase) for phrase in self._phrases))


def vocabulary(feature: str, words: Sequence[str] = ()) -> Vocabulary:
    """Returns the built-in vocabulary of a feature, or one of the words given."""
    if words:
        return Vocabulary(feature, words)
    known = built_in()
    if feature not in known:
        raise ConfigError(
            f"no built-in words for the feature {feature!r}; there are words for "
            f"{', '.join(known)}; for another one give them: --words {feature},..."
        )
    return Vocabulary(feature, **known[feature])


def built_in() -> dict[str, dict[str, list[str]]]:
    """Returns the built-in vocabularies, as they stand in vocabularies.toml."""
    return tomllib.loads(Path(__file__).with_name("vocabularies.toml").read_text(encoding="utf-8"))


def _strike(words: Phrase, names: Iterable[Phrase]) -> Phrase:
    for name in names:
        for start in range(len(words) - len(name) + 1):
            if words[start : start + len(name)] == name:
                return _strike((*words[:start], "", *words[start + len(name) :]), names)
    return words


def _holds(words: Phrase, phrases: frozenset[Phrase]) -> bool:
    return any(
        words[start : start + len(phrase)] == phrase
        for phrase in phrases
        for start in range(len(words) - len(phrase) + 1)
    )
