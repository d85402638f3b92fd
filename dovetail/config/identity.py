"""The identity of a config: what must stay the same for a run to be continued."""

from __future__ import annotations

from typing import Any, TypeVar

from dovetail.config.base import Config
from dovetail.config.traverse import visit

C = TypeVar("C", bound=Config[Any])


def identity(config: C) -> C:
    """Returns a copy in which every incidental field has its default again."""
    copy = config.clone()
    for _, inner in list(visit(copy)):
        defaults = type(inner)()
        names = [name for name, field in inner.fields().items() if field.incidental]
        values = {name: getattr(defaults, name) for name in names}
        inner.set(**values)
    return copy
