"""Matching of identifiers with a feature's words: whole words, in snake_case and CamelCase.

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


class FeatureWords:
    """The words that name a feature."""

    def __init__(self, name: str, words: Iterable[str], unless: Iterable[str] = ()) -> None:
        self.name = name
        self.words = tuple(words)
        self._phrases = frozenset(filter(None, map(split_words, self.words)))
        self._except = frozenset(filter(None, map(split_words, unless)))
        self._ignored: tuple[Phrase, ...] = ()
        # The same identifiers come up a hundred thousand times in a code base.
        self._known: dict[str, bool] = {}
        if not self._phrases:
            raise ConfigError(f"the feature {name!r} has no words; give some: --words rope,rotary")

    def ignoring(self, names: Collection[Phrase]) -> FeatureWords:
        """Returns words that do not match inside the names of models.

        Every class of a model called `qwen3_moe` has `Moe` in its name, and says nothing about the
        feature. A model name that begins with the feature's word still matches.
        """
        starts = [name for name in names if any(name[: len(p)] == p for p in self._phrases)]
        ignored = [name for name in {*names} - {*starts} if _holds(name, self._phrases)]
        copy = FeatureWords(self.name, self.words)
        copy._except = self._except
        copy._ignored = tuple(sorted(ignored, key=len, reverse=True))
        return copy

    def match(self, identifier: str) -> bool:
        """Says whether the identifier contains one of the words."""
        if identifier not in self._known:
            words = _blank_out(split_words(identifier), self._ignored)
            self._known[identifier] = _holds(words, self._phrases) and not _holds(
                words, self._except
            )
        return self._known[identifier]

    def match_any(self, identifiers: Iterable[str]) -> bool:
        """Says whether any of the identifiers contains one of the words."""
        return any(self.match(identifier) for identifier in identifiers)

    @functools.cached_property
    def pattern(self) -> str:
        """An extended regular expression, to be used ignoring case, that matches every word.

        It matches other text, too: it only skips files quickly, and `match` decides.
        """
        return "|".join(sorted("[_-]?".join(phrase) for phrase in self._phrases))


def feature_words(feature: str, words: Sequence[str] = ()) -> FeatureWords:
    """Returns the built-in words of a feature, or those given."""
    if words:
        return FeatureWords(feature, words)
    builtin = builtin_words()
    if feature not in builtin:
        raise ConfigError(
            f"no built-in words for the feature {feature!r}; there are words for "
            f"{', '.join(builtin)}; for another one give them: --words {feature},..."
        )
    return FeatureWords(feature, **builtin[feature])


def builtin_words() -> dict[str, dict[str, list[str]]]:
    """Returns the words of every built-in feature, from words.toml."""
    return tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))


def _blank_out(words: Phrase, names: Iterable[Phrase]) -> Phrase:
    for name in names:
        for start in range(len(words) - len(name) + 1):
            if words[start : start + len(name)] == name:
                return _blank_out((*words[:start], "", *words[start + len(name) :]), names)
    return words


def _holds(words: Phrase, phrases: frozenset[Phrase]) -> bool:
    return any(
        words[start : start + len(phrase)] == phrase
        for phrase in phrases
        for start in range(len(words) - len(phrase) + 1)
    )
