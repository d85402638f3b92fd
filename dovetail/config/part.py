"""Part: a class with a nested Config, known to the text format by its name."""

from __future__ import annotations

from typing import Any, Generic

from dovetail.config.base import Config as BaseConfig
from dovetail.config.base import ConfigMeta, T_co
from dovetail.config.errors import ConfigError
from dovetail.config.registry import register_part


class Part:
    """The base of everything that is built from a config."""

    class Config(BaseConfig[T_co], Generic[T_co]):
        """The config of a part; subclasses declare fields."""

    def __init__(self, config: Config[Any]) -> None:
        """Keeps the config the part was built from."""
        self.config = config

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Gives every part a Config of its own, so that a subclass never builds its base."""
        super().__init_subclass__(**kwargs)
        if "Config" not in cls.__dict__:
            inherited = tuple(
                dict.fromkeys(base.Config for base in cls.__bases__ if issubclass(base, Part))
            )
            name = f"{cls.__qualname__}.Config"
            namespace = {"__module__": cls.__module__, "__qualname__": name}
            cls.Config = ConfigMeta("Config", inherited, namespace)  # type: ignore[misc, assignment]
        _bind(cls)
        register_part(cls)


def _bind(cls: type[Part]) -> None:
    """Ties a part and its Config together."""
    for base in cls.__mro__[1:]:
        inherited = base.__dict__.get("Config")
        if inherited is not None and not issubclass(cls.Config, inherited):
            raise ConfigError(
                f"{cls.__qualname__}.Config must extend {base.__qualname__}.Config, "
                f"because {cls.__qualname__} extends {base.__qualname__}."
            )
    if "builds" in cls.Config.__dict__:
        raise ConfigError(
            f"{cls.__qualname__}.Config is already the Config of another part. Declare "
            f"`class Config({cls.Config.__qualname__})`, or leave it out to get a new one."
        )
    type.__setattr__(cls.Config, "builds", classmethod(lambda config_class: cls))


type.__setattr__(Part.Config, "builds", classmethod(lambda config_class: Part))
