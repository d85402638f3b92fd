"""Shared: a child that stands for another module of the model, so both use one set of weights."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from dovetail.config import REQUIRED
from dovetail.module.context import require_frame, running
from dovetail.module.module import Module


class Shared(Module):
    """A reference by path. It has no parameters; calls go to the module it names."""

    class Config(Module.Config[Any]):
        """Which module: a path such as `decoder/embedding`, from any module around this one."""

        path: str = REQUIRED

        def clone(self, **values: Any) -> Self:
            """Returns a copy; sizes that a parent sets are those of the module it refers to."""
            return super().clone(**{name: values[name] for name in values if name == "path"})

    # Configs check what a child builds; a reference can stand for anything.
    stands_for_any: ClassVar[bool] = True

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.target_path = config.path

    def refers_to(self, module: Module) -> bool:
        """Says whether `module` is the one that this stands for."""
        return self._target() is module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module that this stands for."""
        return self._target()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Reads an attribute of the module that this stands for, or returns a method of it."""
        if name.startswith("_") or "target_path" not in vars(self):
            raise AttributeError(name)
        found = getattr(self._target(), name)
        return self._entered(found) if callable(found) and not isinstance(found, Module) else found

    def _target(self) -> Any:
        tree = require_frame(f"Shared({self.target_path!r})").scope.tree
        return tree.resolve(self.target_path, self)

    def _entered(self, method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            with running(require_frame("A shared module").enter(self)):
                return method(*args, **kwargs)

        return call
