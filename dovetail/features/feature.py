"""Feature: a modifier, the components it needs in an experiment, and the code it owns."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from dovetail.config import ConfigError, Registry, find, modifier

F = TypeVar("F", bound=Callable[..., Any])
_NONE: Mapping[str, str] = MappingProxyType({})


class NotApplicable(ConfigError):
    """The feature does not apply to this experiment, for a reason that it declares."""


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A named change to an experiment: `--with NAME`.

    Attributes:
        name: as in `--with NAME`.
        kind: what it changes: "positions", "attention" and so on.
        about: one line of help.
        apply: the modifier. It raises `NotApplicable` if a need is not met.
        unchecked: the modifier without that check.
        definition: where the modifier is defined, "features/positions/encodings.py:rope"; empty for
            a feature of another package.
        files: other code that only this feature needs, relative to the package: a folder
            ("layers/moe/"), a file, or a definition in a file ("layers/norms.py:LayerNorm").
        builds_on: features that this one requires, and whose components it may name.
        needs: components ("module:Class") that the experiment must have, each with the reason.
        excludes: components that it must not have, each with the reason.
        trials: arguments for tiny models, where the defaults have no effect (a window of 1024 on
            32 tokens). Every tiny model is tried with the first; one is tried with all.
    """

    name: str
    kind: str
    about: str
    apply: Callable[..., Any]
    unchecked: Callable[..., Any]
    definition: str
    files: tuple[str, ...]
    builds_on: tuple[str, ...]
    needs: Mapping[str, str]
    excludes: Mapping[str, str]
    trials: tuple[Mapping[str, Any], ...] = (_NONE,)

    @property
    def trial(self) -> Mapping[str, Any]:
        """The arguments for every tiny model."""
        return self.trials[0]

    def refusal(self, config: Any) -> str | None:
        """Returns why the feature does not apply to a config, or None if it does."""
        for name, why in self.needs.items():
            if find(config, named_component(name)) is None:
                return f"it has no {_short(name)}: {why}"
        for name, why in self.excludes.items():
            if (path := find(config, named_component(name))) is not None:
                return f"{path} is {_short(name)} already: {why}"
        return None


_features: Registry[Feature] = Registry("feature", "dovetail.features")


def feature(
    name: str,
    *,
    kind: str | None = None,
    files: tuple[str, ...] = (),
    builds_on: tuple[str, ...] = (),
    needs: Mapping[str, str] = _NONE,
    excludes: Mapping[str, str] = _NONE,
    trials: tuple[Mapping[str, Any], ...] = (_NONE,),
) -> Callable[[F], F]:
    """Registers a modifier as a feature; see `Feature` for the arguments.

    The default `kind` is the folder of the module.
    """

    def register(function: F) -> F:
        @functools.wraps(function)
        def checked(config: Any, /, *args: Any, **kwargs: Any) -> Any:
            if (why := made.refusal(config)) is not None:
                raise NotApplicable(f"--with {name} does not apply to this experiment: {why}.")
            return function(config, *args, **kwargs)

        package, _, module = function.__module__.partition(".")
        definition = f"{module.replace('.', '/')}.py:{function.__name__}"
        folder = function.__module__.split(".")[-2:][0]
        applied = modifier(name)(checked)
        made = Feature(
            name=name,
            kind=kind or folder.replace("_", "-"),
            about=(function.__doc__ or name).strip().splitlines()[0],
            apply=applied,
            unchecked=function,
            definition=definition if package == "dovetail" else "",
            files=files,
            builds_on=builds_on,
            needs=MappingProxyType(dict(needs)),
            excludes=MappingProxyType(dict(excludes)),
            trials=tuple(MappingProxyType(dict(trial)) for trial in trials),
        )
        _features.register(name, made, function.__module__)
        return applied  # type: ignore[return-value]  # same signature, by functools.wraps

    return register


def features() -> dict[str, Feature]:
    """Returns all features by name: this package's, and those of imported packages."""
    return _features.all()


def named_component(name: str) -> Any:
    """Returns the class that `needs` or `excludes` names as "module:Class"."""
    module, _, component = name.partition(":")
    return getattr(importlib.import_module(module), component)


def _short(name: str) -> str:
    return name.rpartition(":")[2]
