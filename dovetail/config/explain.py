"""Why does a config hold what it holds? Every value, with the line of code that set it."""

from __future__ import annotations

from typing import Any, NamedTuple

from dovetail.config.base import Config
from dovetail.config.text import all_values
from dovetail.config.traverse import visit
from dovetail.config.values import join


class Explanation(NamedTuple):
    """One value of a tree: its path, its text, and where it came from."""

    path: str
    value: str
    origin: str


def explain(config: Config[Any]) -> list[Explanation]:
    """Returns every value of the tree with its origin, in the order of the paths."""
    tree = config.clone()  # its paths begin at this config
    owners = {
        join(path, name): (owner, name) for path, owner in visit(tree) for name in owner.fields()
    }
    return [
        Explanation(path, value, _origin(path, owners) if path else "the config itself")
        for path, value in all_values(tree).items()
    ]


def _origin(path: str, owners: dict[str, tuple[Config[Any], str]]) -> str:
    while path not in owners:  # an item of a list or dict: its field knows
        path = path.rpartition(".")[0]
    owner, name = owners[path]
    origin = owner.get_origin(name)
    if origin is not None:
        return str(origin)
    changed = owner.is_set(name) and not isinstance(owner._node.values[name], Config)
    return "changed in place" if changed else f"default of {type(owner).display_name()}"
