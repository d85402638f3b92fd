"""Feature: a modifier, with what it needs of an experiment and which files belong to it alone."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from dovetail.config import ConfigError, find, import_submodules, modifier

F = TypeVar("F", bound=Callable[..., Any])
_NONE: Mapping[str, str] = MappingProxyType({})


class NotApplicable(ConfigError):
    """The feature makes no sense for this experiment, for a reason that it declares."""


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A named change that any experiment may take.

    Attributes:
        name: as in `--with NAME`.
        kind: what it changes: "positions", "attention", "norms" and so on.
        about: one line on it.
        apply: the modifier. It raises `NotApplicable` where the needs are not met.
        unchecked: the modifier without that check.
        files: what belongs to the feature alone, from the package's folder on; its own file first.
            Empty for a feature of another package.
        builds_on: features that it makes no sense without, and whose parts it may name.
        needs: parts ("module:Class") of which the experiment must have one, each with what to say
            where it has none.
        excludes: parts that it must not have, each with what to say where it has one.
        trials: arguments to try it with on tiny forms, for which the usual ones are too large (a
            window of 1024 hides nothing of 32 tokens). The first are for every tiny form; all of
            them are run on one, so that every optimizer by name is, say.
    """

    name: str
    kind: str
    about: str
    apply: Callable[..., Any]
    unchecked: Callable[..., Any]
    files: tuple[str, ...]
    builds_on: tuple[str, ...]
    needs: Mapping[str, str]
    excludes: Mapping[str, str]
    trials: tuple[Mapping[str, Any], ...] = (_NONE,)

    @property
    def trial(self) -> Mapping[str, Any]:
        """The arguments for every tiny form."""
        return self.trials[0]

    def refusal(self, config: Any) -> str | None:
        """Returns why the feature makes no sense for a config, or None where it does."""
        for name, why in self.needs.items():
            if find(config, named_part(name)) is None:
                return f"it has no {_short(name)}: {why}"
        for name, why in self.excludes.items():
            if (path := find(config, named_part(name))) is not None:
                return f"{path} is {_short(name)} already: {why}"
        return None


_features: dict[str, Feature] = {}


def feature(
    name: str,
    *,
    kind: str,
    files: tuple[str, ...] = (),
    builds_on: tuple[str, ...] = (),
    needs: Mapping[str, str] = _NONE,
    excludes: Mapping[str, str] = _NONE,
    trials: tuple[Mapping[str, Any], ...] = (_NONE,),
) -> Callable[[F], F]:
    """Registers a modifier as a feature; see `Feature` for the arguments."""

    def register(function: F) -> F:
        @functools.wraps(function)
        def checked(config: Any, /, *args: Any, **kwargs: Any) -> Any:
            if (why := _features[name].refusal(config)) is not None:
                raise NotApplicable(f"--with {name} makes no sense for this experiment: {why}.")
            return function(config, *args, **kwargs)

        package, _, module = function.__module__.partition(".")
        own = (f"{module.replace('.', '/')}.py",) if package == "dovetail" else ()
        applied = modifier(name)(checked)
        _features[name] = Feature(
            name=name,
            kind=kind,
            about=(function.__doc__ or name).strip().splitlines()[0],
            apply=applied,
            unchecked=function,
            files=(*own, *files),
            builds_on=builds_on,
            needs=MappingProxyType(dict(needs)),
            excludes=MappingProxyType(dict(excludes)),
            trials=tuple(MappingProxyType(dict(trial)) for trial in trials),
        )
        return applied  # type: ignore[return-value]  # same signature, by functools.wraps

    return register


def features() -> dict[str, Feature]:
    """Returns all features by name: this folder's, and those of packages that were imported."""
    import_submodules("dovetail.features")
    return dict(sorted(_features.items()))


def named_part(name: str) -> Any:
    """Returns the class that needs and excludes name as "module:Class"."""
    module, _, part = name.partition(":")
    return getattr(importlib.import_module(module), part)


def _short(name: str) -> str:
    return name.rpartition(":")[2]
